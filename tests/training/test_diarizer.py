from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import nemo2
import numpy as np
import pytest
import torch
from click.testing import CliRunner

from sortk.cli import main
from sortk.corpora.espeak import EspeakOptions, prepare
from sortk.formats import audio, manifest, rttm
from sortk.formats.files import FormatError
from sortk.formats.model_folder import load_model
from sortk.inference.diarize import load
from sortk.inference.load import load_diarizer, read_model
from sortk.models.frames import SpeakerOutput
from sortk.prepare.simulate import SimulateOptions, index_sources
from sortk.records import Segment, Session
from sortk.training.data import Batch, Pretrained, TrainingData
from sortk.training.diarizer import DiarizerTask, build_diarizer, count_errors, start_from, train_diarizer
from sortk.training.options import DiarPhaseOptions, LoopOptions, TrainDiarOptions, WarmupOptions
from sortk.training.small_scale import fit_identities, read_teacher, speaker_loss, start_by_comparing
from sortk.training.targets import DiarizerLabels, LabelledClip

NEMOTRON = Path(__file__).parents[1] / "fixtures" / "nemo2" / "tiny_nemotron_hf"


def output_of(decided: list[list[int]]) -> SpeakerOutput:
    """Frames x speakers of 0 and 1, as confident logits."""
    logits = 20.0 * torch.tensor([decided], dtype=torch.float32) - 10.0
    return SpeakerOutput(logits, None, torch.zeros(1, len(decided), 1))


def test_errors_counted_by_hand() -> None:
    targets = torch.tensor([[[1, 0], [1, 0], [1, 1], [0, 1], [0, 0]]], dtype=torch.float32)  # 5 speaker frames
    # the columns are swapped, one frame is missed, one is false
    errors = count_errors(output_of([[0, 1], [0, 0], [1, 1], [1, 0], [1, 0]]), targets)
    assert (errors.spoken, errors.wrong, errors.n_sessions, errors.n_in_order) == (5.0, 2.0, 1, 0.0)
    # as they are: frame 0 confused, 1 missed, 2 right, 3 confused, 4 false
    assert errors.wrong_unmapped == 4.0 and errors.der == pytest.approx(0.4)
    right = count_errors(output_of(targets[0].int().tolist()), targets)
    assert (right.wrong, right.wrong_unmapped, right.n_in_order) == (0.0, 0.0, 1.0)


def test_identities_are_told_apart_by_angle() -> None:
    identities = torch.eye(3)
    embeddings = torch.tensor([[[9.0, 0, 0], [0, 0.1, 0], [0, 0, 5.0], [1.0, 0, 0]]])
    loss, right, cosine = speaker_loss(embeddings, identities, torch.tensor([[0, 1, 0, -1]]))
    assert float(right) == pytest.approx(2 / 3) and loss > 1
    assert float(cosine) == pytest.approx(2 / 3)  # that of the wrong frame is 0
    nothing, share, _ = speaker_loss(embeddings, identities, torch.full((1, 4), -1))
    assert float(nothing) == 0.0 and float(share) == 0.0


class Rotated(torch.nn.Module):
    """Embeds a frame as the teacher's vector of its speaker, turned by 90 degrees; the samples are the speakers."""

    embedding_size = 2

    def embed(self, samples: torch.Tensor, lengths: torch.Tensor | None) -> torch.Tensor:
        return TEACHER[samples.long()] @ torch.tensor([[0.0, 3.0], [-3.0, 0.0]])


TEACHER = torch.nn.functional.normalize(torch.randn(200, 2, generator=torch.Generator().manual_seed(0)), dim=1)


def test_identities_are_fitted_to_a_trained_model() -> None:
    speakers = torch.arange(200).view(4, 50)
    batch = Batch(("a",) * 4, 4, speakers.float(), None, torch.zeros(4, 50, 2), speakers)
    fitted = fit_identities(Rotated(), TEACHER, [batch])  # type: ignore[arg-type]
    assert torch.allclose(fitted, torch.tensor([[0.0, 1.0], [-1.0, 0.0]]), atol=0.02)  # the ridge shrinks it by 1 %


def make_sessions(folder: Path, n_sessions: int) -> list[Session]:
    """Two voices, a low and a high hum, that speak in turns; who starts is drawn."""
    rng = np.random.default_rng(0)
    time = np.arange(16000 * 4) / 16000
    voices = {"low": np.sign(np.sin(2 * np.pi * 110 * time)), "high": np.sign(np.sin(2 * np.pi * 330 * time))}
    sessions = []
    for n in range(n_sessions):
        order = ["low", "high"] if rng.random() < 0.5 else ["high", "low"]
        edges = [0.4, 0.4 + rng.uniform(0.8, 1.6), 3.6]
        samples = 0.01 * rng.standard_normal(len(time))
        segments = []
        for name, start, end in zip(order, edges, edges[1:], strict=False):
            inside = (time >= start) & (time < end)
            samples += 0.1 * voices[name] * inside
            segments.append(Segment(f"s{n}", name, round(start, 3), round(end, 3)))
        audio.write_flac(folder / f"s{n}.flac", samples.astype(np.float32))
        rttm.write(folder / f"s{n}.rttm", segments)
        sessions.append(Session(f"s{n}", folder / f"s{n}.flac", duration=4.0, rttm_path=folder / f"s{n}.rttm"))
    return sessions


LOOP = LoopOptions(
    steps=40,
    learning_rate=2e-3,
    warmup_steps=8,
    annealing="cosine",
    batch_seconds=16.0,
    validate_every=20,
    keep_best=1,
)
OPTIONS = TrainDiarOptions(
    size="tiny",
    n_speakers=2,
    global_speakers=True,
    encoder_warmup=WarmupOptions(steps=10, simulated=0.0),
    phases=(DiarPhaseOptions("diarize", speaker_weight=0.3, loop=LOOP),),
)


def test_it_overfits_a_few_sessions_and_sorts_them(tmp_path: Path) -> None:
    sessions = make_sessions(tmp_path, 4)
    scores = train_diarizer(TrainingData(sessions, sessions), OPTIONS, 0, tmp_path / "out")
    assert scores["der"] < 0.1 and scores["arrival_accuracy"] >= 0.75
    weights, config = load_model(tmp_path / "out" / "model")
    model, rebuilt = build_diarizer(OPTIONS)
    model.load_state_dict(weights)
    assert json.loads(json.dumps(rebuilt)) == config


def test_new_attention_compares_frames() -> None:
    model, _ = build_diarizer(OPTIONS)
    start_by_comparing(model)
    x = torch.randn(1, 20, 96)
    attention = model.transformer.layers[0].attention
    scores = attention.query(x) @ attention.key(x).transpose(1, 2)
    assert (scores[0].argmax(dim=1) == torch.arange(20)).all()  # nothing resembles a frame more than itself
    assert torch.equal(model.encoder.layers[3].self_attn.linear_q.bias, model.encoder.layers[3].self_attn.linear_k.bias)


def test_a_teacher_names_the_voices_and_a_killed_run_ends_with_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions = make_sessions(tmp_path, 2)
    np.savez(tmp_path / "teacher.npz", voices=["high", "low", "unknown"], vectors=np.eye(3, 5))
    loop = replace(LOOP, steps=4, validate_every=4, checkpoint_every=2)
    phase = DiarPhaseOptions("diarize", speaker_weight=0.3, layer_weight=0.5, loop=loop)
    warmup = WarmupOptions(steps=4, simulated=0.0, teacher=str(tmp_path / "teacher.npz"))
    options = replace(OPTIONS, encoder_warmup=warmup, phases=(phase,))
    data = TrainingData(sessions, sessions)
    train_diarizer(data, options, 0, tmp_path / "at once")
    forward, n_calls = DiarizerTask.forward, 0

    def forward_until_killed(task: DiarizerTask, batch: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        nonlocal n_calls
        n_calls += 1
        if n_calls in (4, 9):
            raise KeyboardInterrupt
        return forward(task, batch)

    monkeypatch.setattr(DiarizerTask, "forward", forward_until_killed)
    for _ in range(2):  # once in the warm-up, once in the phase
        with pytest.raises(KeyboardInterrupt):
            train_diarizer(data, options, 0, tmp_path / "killed")
    train_diarizer(data, options, 0, tmp_path / "killed")
    at_once, killed = (load_model(tmp_path / name / "model")[0] for name in ("at once", "killed"))
    assert all(torch.equal(at_once[name], killed[name]) for name in at_once)
    lines = [json.loads(line) for line in (tmp_path / "killed" / "log.jsonl").read_text().splitlines()]
    assert "cosine" in lines[0] and lines[0]["phase"] == "encoder-warmup"

    vectors, row_of = read_teacher(tmp_path / "teacher.npz", ["high", "low", "other"])
    # less their mean, (1/2, 1/2, 0, ...), the two are opposite
    assert row_of == {"high": 0, "low": 1}
    assert torch.allclose(vectors, torch.tensor([[1.0, -1, 0, 0, 0], [-1, 1, 0, 0, 0]]) / 2**0.5)
    with pytest.raises(FormatError, match="no embedding of any voice"):
        read_teacher(tmp_path / "teacher.npz", ["nobody"])


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ({"vectors": np.ones(2)}, "rows of finite numbers"),
        ({"vectors": np.full((2, 3), np.nan)}, "rows of finite numbers"),
        ({"vectors": np.array([["a"], ["b"]])}, "could not convert"),
        ({"vectors": np.array([{}, {}])}, "pickled|allow_pickle"),
        ({"vectors": np.ones((5, 3))}, "argument"),
        ({}, "vectors"),
        (b"PK\x03\x04 cut", "not a zip file"),
    ],
)
def test_a_damaged_teacher_is_named(tmp_path: Path, content: dict[str, np.ndarray] | bytes, fault: str) -> None:
    path = tmp_path / "teacher.npz"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        np.savez(path, allow_pickle=True, voices=["high", "low"], **content)
    with pytest.raises(FormatError, match=rf"teacher.npz: not a file of recipes/small/teacher.py \(.*({fault})"):
        read_teacher(path, ["high", "low"])


def test_layers_below_the_last_learn_to_diarize_only_in_training() -> None:
    model, _ = build_diarizer(OPTIONS)
    model.by_layer = True
    samples = torch.randn(1, 16000)
    earlier = model.train()(samples).earlier
    assert [logits.shape for logits in earlier] == [(1, 13, 2)]  # one of its two layers
    assert model.eval()(samples).earlier == ()
    assert torch.allclose(model.embed(samples), model(samples).embeddings, atol=1e-6)


def test_the_baselines_train_too(tmp_path: Path) -> None:
    sessions = make_sessions(tmp_path, 2)
    loop = replace(LOOP, steps=2, validate_every=2)
    for name in ("eend-sa", "eend-eda", "aed-eend", "aed-eend-ee", "eend-gla"):
        options = TrainDiarOptions(model=name, size="tiny", n_speakers=2, phases=(DiarPhaseOptions(loop=loop),))
        scores = train_diarizer(TrainingData(sessions, sessions), options, 0, tmp_path / name)
        assert np.isfinite(scores["der"])


@pytest.mark.parametrize(("n_old", "n_new"), [(4, 8), (8, 4)])
def test_another_number_of_speakers_keeps_the_outputs_that_both_have(
    n_old: int, n_new: int, caplog: pytest.LogCaptureFixture
) -> None:
    old, config = build_diarizer(TrainDiarOptions(size="tiny", n_speakers=n_old))
    kept = {"streaming": {"chunk": 9}, "linking": {"window": 9}}
    assert build_diarizer(TrainDiarOptions(size="tiny"), config | kept)[1] == config | kept
    same, _ = build_diarizer(TrainDiarOptions(size="tiny"), config)
    assert same.options.n_speakers == n_old  # the initial model's, if it is not set
    start_from(same, old.state_dict())
    assert "outputs are kept" not in caplog.text
    new, _ = build_diarizer(TrainDiarOptions(size="tiny", n_speakers=n_new), config)
    random = new.state_dict()["speakers.weight"].clone()
    start_from(new, old.state_dict())
    before, after = old.state_dict(), new.state_dict()
    for name in ("speakers.weight", "speakers.bias"):
        assert len(after[name]) == n_new and torch.equal(after[name][:4], before[name][:4])
    assert torch.equal(after["speakers.weight"][4:], random[4:])
    rest = "4 are new" if n_new == 8 else "4 are left out"
    assert (
        f"the initial model has {n_old} speakers and this one {n_new}: the first 4 outputs are kept, {rest}"
        in caplog.text
    )


def test_without_an_initial_model_there_are_four_speakers() -> None:
    for name in ("sortformer", "eend-sa", "eend-eda"):
        assert build_diarizer(TrainDiarOptions(model=name, size="tiny"))[0].options.n_speakers == 4
    eend, config = build_diarizer(TrainDiarOptions(model="eend-sa", n_speakers=3))
    assert build_diarizer(TrainDiarOptions(model="eend-sa"), config)[0].options == eend.options


def test_the_warm_up_alone_makes_an_encoder_to_start_from(tmp_path: Path) -> None:
    sessions = make_sessions(tmp_path, 4)
    options = replace(OPTIONS, encoder_warmup=replace(OPTIONS.encoder_warmup, steps=2), phases=())
    train_diarizer(TrainingData(sessions, sessions), options, 0, tmp_path / "encoder")
    model, _ = build_diarizer(options)
    model.load_state_dict(load_model(tmp_path / "encoder" / "model")[0])
    with pytest.raises(ValueError, match="there are no phases, so init must name the model"):
        replace(options, encoder_warmup=WarmupOptions())


def test_a_phase_with_the_name_of_the_warm_up_is_refused() -> None:
    phases = (DiarPhaseOptions("encoder-warmup", loop=LOOP),)
    with pytest.raises(ValueError, match="phase 'encoder-warmup' has the name of the encoder warm-up; give the phase"):
        replace(OPTIONS, phases=phases)
    assert replace(OPTIONS, encoder_warmup=WarmupOptions(), phases=phases).phases == phases  # no warm-up


def test_conversations_on_the_fly_need_no_training_manifest(tmp_path: Path) -> None:
    found = prepare(EspeakOptions(speakers=3, utterances_per_speaker=3), tmp_path / "voices", 0, map)
    speakers = index_sources(found, tmp_path, 16000, map)
    data = TrainingData([], make_sessions(tmp_path, 1), speakers, SimulateOptions())
    loop = replace(LOOP, steps=1, validate_every=1)
    phase = DiarPhaseOptions(recorded=False, simulated=1.0, seconds=9.0, max_speakers=2, speaker_weight=0.1, loop=loop)
    options = replace(OPTIONS, encoder_warmup=WarmupOptions(), phases=(phase,))
    assert np.isfinite(train_diarizer(data, options, 0, tmp_path / "out")["der"])
    with pytest.raises(ValueError, match="phase 'train' learns from the training manifest, which is empty"):
        train_diarizer(data, replace(options, phases=(replace(phase, recorded=True),)), 0, tmp_path / "other")


def test_a_phase_that_simulates_needs_sources(tmp_path: Path) -> None:
    options = replace(OPTIONS, phases=(DiarPhaseOptions(simulated=0.5, loop=LOOP),))
    sessions = make_sessions(tmp_path, 2)
    with pytest.raises(ValueError, match="phase 'train' simulates on the fly, but there are no sources"):
        train_diarizer(TrainingData(sessions, sessions), options, 0, tmp_path / "out")


def test_a_nemotron_is_tuned_with_targets_of_10_ms(tmp_path: Path) -> None:
    sessions = make_sessions(tmp_path, 3)
    initial = Pretrained(*read_model(NEMOTRON))
    before = {name: tensor.clone() for name, tensor in initial.weights.items()}
    loop = replace(LOOP, steps=2, learning_rate=1e-4, warmup_steps=1, validate_every=2)
    options = TrainDiarOptions(phases=(DiarPhaseOptions("tune", loop=loop),))
    scores = train_diarizer(TrainingData(sessions, sessions), options, 0, tmp_path / "out", initial)
    assert scores["der"] >= 0
    weights, config = load_model(tmp_path / "out" / "model")
    assert config["model"] == "nemotron" and config["options"] == initial.config["options"]
    assert weights["speakers.weight"].shape == (8, 32)
    changed = {name for name, tensor in weights.items() if not torch.equal(tensor, before[name])}
    assert changed == before.keys() - {"learned_silence"}  # which only a stream uses
    probs = load(tmp_path / "out" / "model").posteriors_of_samples(audio.read(sessions[0].audio_path))
    assert probs.shape == (400, 8)


def test_output_rows_of_eight_speakers_are_kept(tmp_path: Path) -> None:
    sessions = make_sessions(tmp_path, 3)
    initial = Pretrained(*read_model(nemo2.find("tiny_sortformer_8spk.nemo")))
    before = {name: initial.weights[name].clone() for name in ("speakers.weight", "speakers.bias")}
    loop = replace(LOOP, steps=2, learning_rate=1e-4, warmup_steps=1, validate_every=2)
    options = TrainDiarOptions(phases=(DiarPhaseOptions("tune", loop=loop),))
    train_diarizer(TrainingData(sessions, sessions), options, 0, tmp_path / "out", initial)
    weights, config = load_model(tmp_path / "out" / "model")
    assert config["options"]["n_speakers"] == 8 and config["streaming"] == initial.config["streaming"]
    for name, rows in before.items():
        assert not torch.equal(weights[name], rows)
        torch.testing.assert_close(weights[name], rows, atol=3e-4, rtol=0)  # each step moves a weight by 1e-4, at most


def test_rows_of_10_ms_by_hand() -> None:
    clip = LabelledClip("a", np.zeros(160 * 20 + 100, np.float32), 1.0, [Segment("a", "x", 1.014, 1.06)])
    example = DiarizerLabels(2, {"x": 5}, rows_per_frame=8).make_example(clip)
    assert example.targets.shape == (20, 2) and example.speakers.shape == (3,)
    assert np.flatnonzero(example.targets[:, 0]).tolist() == [1, 2, 3, 4, 5]  # of row 1, 6 ms are speech
    assert example.speakers.tolist() == [5, -1, -1]  # 46 of the first 80 ms


def test_a_model_that_starts_from_linked_windows_keeps_what_is_known_about_voices(tmp_path: Path) -> None:
    listed = tmp_path / "sessions.jsonl"
    manifest.write(listed, make_sessions(tmp_path, 2))
    arguments = ["train-diar", "--train", str(listed), "--valid", str(listed), "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(main, [*arguments, "--set", "init=sortk/small", "--set", "phases=[]"])
    assert result.exit_code == 0, result.output
    copied, own = load_diarizer(tmp_path / "out" / "model").voices, load_diarizer(Path("sortk/small")).voices
    assert copied is not None and own is not None
    assert np.array_equal(copied.axes, own.axes) and np.array_equal(copied.spread, own.spread)
