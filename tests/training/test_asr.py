from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from spoken import SMALL_ASR, SMALL_DIARIZER, WORD_SECONDS, make_samples
from torch.nn import functional

from sortk.cli import main
from sortk.formats import manifest
from sortk.formats.model_folder import load_model, save_model
from sortk.formats.sst import SstOptions, strip_tokens
from sortk.formats.tokens import load_tokenizer
from sortk.models.canary import SIZES
from sortk.models.msasr import MsAsr, MsAsrOptions
from sortk.models.sortformer import Sortformer
from sortk.prepare.simulate import SimulateOptions, index_sources
from sortk.records import Source
from sortk.training.asr import (
    AsrTask,
    TextErrors,
    build_asr,
    count_text_errors,
    mean_of_clips,
    token_losses,
    train_asr,
)
from sortk.training.data import Batch, Pretrained, TrainingData
from sortk.training.options import AsrPhaseOptions, LoopOptions, TrainAsrOptions
from sortk.training.targets import NOT_KNOWN

LOOP = LoopOptions(
    steps=3, learning_rate=5e-3, warmup_steps=1, batch_seconds=8.0, validate_every=3, checkpoint_every=100, keep_best=1
)
SST = SstOptions()
OPTIONS = TrainAsrOptions(
    size="tiny",
    supervision="truth",
    n_speakers=2,
    label_smoothing=0.0,
    n_tokens=40,
    phases=(AsrPhaseOptions(word_weight=0.5, loop=LOOP),),
)


@pytest.fixture(autouse=True)
def small_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SIZES, "tiny", SMALL_ASR)


def diarizer(seed: int = 1) -> Pretrained:
    torch.manual_seed(seed)
    model = Sortformer(SMALL_DIARIZER)
    return Pretrained(model.state_dict(), {"model": "sortformer", "options": SMALL_DIARIZER.to_json()})


def data_in(folder: Path, n_sessions: int = 4) -> TrainingData:
    sessions = make_samples(folder, n_sessions)
    return TrainingData(sessions, sessions)


def pretrained_in(folder: Path) -> Pretrained:
    weights, config = load_model(folder)
    return Pretrained(weights, config, load_tokenizer(folder, config))


# ---------------------------------------------------------------------------------------------------------------------
# Numbers by hand


def test_errors_counted_by_hand() -> None:
    """A word goes to the other speaker: no word is wrong, but one is missing here and one too many there."""
    errors = count_text_errors("<spk0> a b <spk1> c", "<spk0> a <spk1> b c")
    assert errors == TextErrors(3, 0, 2)
    swapped = count_text_errors("<spk0> a b <spk1> c", "<spk0> c <spk1> a b")
    assert swapped.wrong_by_speaker == 0 and swapped.wrong == 2
    assert count_text_errors("<spk0> a b", "") == TextErrors(2, 2, 2)
    assert count_text_errors("", "<spk0> a") == TextErrors(0, 1, 1)
    assert count_text_errors("a <cs> b", "b <cs> a") == TextErrors(2, 2, 0)
    total = errors + TextErrors(1, 1, 1)
    assert (total.wer, total.cpwer) == (0.25, 0.75)


def test_losses_by_hand() -> None:
    logits, tokens = torch.randn(2, 3, 5), torch.tensor([[1, 4, NOT_KNOWN], [0, NOT_KNOWN, NOT_KNOWN]])
    losses = token_losses(logits, tokens)
    log_probs = logits.log_softmax(dim=2)
    first, second = -(log_probs[0, 0, 1] + log_probs[0, 1, 4]) / 2, -log_probs[1, 0, 0]
    torch.testing.assert_close(mean_of_clips(losses, tokens != NOT_KNOWN), (first + second) / 2)
    smooth = token_losses(logits[1:, :1], tokens[1:, :1], label_smoothing=0.1)
    expected = 0.9 * second - 0.1 * log_probs[1, 0].mean()
    torch.testing.assert_close(smooth[0, 0], expected)
    nothing = torch.full((2, 3), NOT_KNOWN)
    assert float(mean_of_clips(token_losses(logits, nothing), nothing != NOT_KNOWN)) == 0.0


# ---------------------------------------------------------------------------------------------------------------------
# Runs


def test_it_learns_a_batch_by_heart(tmp_path: Path) -> None:
    loop = replace(LOOP, steps=100, validate_every=100)
    options = replace(OPTIONS, phases=(AsrPhaseOptions(word_weight=0.5, loop=loop),))
    scores = train_asr(data_in(tmp_path, 6), SST, options, 0, tmp_path / "out")
    assert scores["cpwer"] < 0.1 and scores["wer"] < 0.1
    weights, config = load_model(tmp_path / "out" / "model")
    assert config["model"] == "msasr" and config["sst_level"] == "word"
    assert config["piece_seconds"] == pytest.approx(0.96)  # how long the samples are
    model = MsAsr(MsAsrOptions.from_json(config["options"]))
    model.load_state_dict(weights)
    tokenizer = load_tokenizer(tmp_path / "out" / "model", config)
    assert tokenizer.n_tokens == model.options.asr.n_tokens
    log = [json.loads(line) for line in (tmp_path / "out" / "log.jsonl").read_text().splitlines()]
    assert {"text", "token_accuracy", "words"} <= log[0].keys() and {"wer", "cpwer"} <= log[-1].keys()


@pytest.mark.parametrize(
    ("supervision", "adapters", "learned"),
    [
        ("none", 0, {"asr"}),
        ("frozen", 0, {"asr"}),
        ("finetuned", 0, {"asr", "diarizer"}),
        ("truth", 0, {"asr"}),
        ("frozen", 8, {"adapters"}),
    ],
)
def test_the_systems_of_table_2_learn_what_they_should(
    tmp_path: Path, supervision: str, adapters: int, learned: set[str]
) -> None:
    options = replace(OPTIONS, supervision=supervision, adapters=adapters)
    sorted_by = diarizer()
    before = _initial_weights(options, tmp_path, sorted_by)
    train_asr(data_in(tmp_path), SST, options, 0, tmp_path / "out", None, sorted_by)
    after, _ = load_model(tmp_path / "out" / "model")
    changed = {name.split(".")[0] for name in after if not torch.equal(after[name], before[name])}
    assert changed == learned


def _initial_weights(options: TrainAsrOptions, folder: Path, sorted_by: Pretrained) -> dict[str, torch.Tensor]:
    """Of the model that training starts from: the same seed makes the same numbers."""
    data = data_in(folder)
    never = replace(LOOP, steps=1, learning_rate=1e-30, min_learning_rate=0.0, validate_every=1, weight_decay=0.0)
    phases = (replace(options.phases[0], loop=never),)
    train_asr(data, SST, replace(options, phases=phases), 0, folder / "before", None, sorted_by)
    return load_model(folder / "before" / "model")[0]


def test_it_goes_on_from_a_trained_model_and_keeps_its_diarizer(tmp_path: Path) -> None:
    data = data_in(tmp_path)
    train_asr(data, SST, replace(OPTIONS, supervision="frozen"), 0, tmp_path / "first", None, diarizer())
    initial = pretrained_in(tmp_path / "first" / "model")
    model, tokenizer = build_asr(replace(OPTIONS, supervision="finetuned"), initial.tokenizer, initial, None)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, initial.weights[name]), name
    assert initial.tokenizer is not None and tokenizer.settings == initial.tokenizer.settings


def test_a_stopped_run_goes_on_to_the_same_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = replace(LOOP, steps=4, checkpoint_every=2, validate_every=4)
    options = replace(OPTIONS, supervision="frozen", phases=(AsrPhaseOptions(word_weight=0.5, loop=loop),))
    data = data_in(tmp_path)
    train_asr(data, SST, options, 0, tmp_path / "whole", None, diarizer())
    learn, n_batches = AsrTask.forward, 0

    def stop_at_the_fourth(task: AsrTask, batch: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        nonlocal n_batches
        n_batches += 1
        if n_batches == 4:
            raise KeyboardInterrupt
        return learn(task, batch)

    monkeypatch.setattr(AsrTask, "forward", stop_at_the_fourth)
    with pytest.raises(KeyboardInterrupt):
        train_asr(data, SST, options, 0, tmp_path / "stopped", None, diarizer())
    train_asr(data, SST, options, 0, tmp_path / "stopped", None, diarizer())
    assert n_batches == 4 + 2  # it went on after the second
    whole, stopped = (load_model(tmp_path / name / "model")[0] for name in ("whole", "stopped"))
    assert all(torch.equal(tensor, stopped[name]) for name, tensor in whole.items())


def test_a_canary_without_speaker_tokens_gets_them(tmp_path: Path) -> None:
    data = data_in(tmp_path)
    train_asr(data, SST, replace(OPTIONS, supervision="none"), 0, tmp_path / "first")
    trained = pretrained_in(tmp_path / "first" / "model")
    weights = {name.removeprefix("asr."): tensor for name, tensor in trained.weights.items()}
    canary = Pretrained(weights, {"model": "canary", "options": trained.config["options"]["asr"]}, trained.tokenizer)
    model, tokenizer = build_asr(replace(OPTIONS, n_speakers=3), canary.tokenizer, canary, None)  # it knows two
    n_tokens = canary.config["options"]["n_tokens"]
    assert tokenizer.speakers[-1] == n_tokens and model.options.asr.n_tokens == n_tokens + 1
    assert torch.equal(model.asr.decoder.embedding.weight[:n_tokens], weights["decoder.embedding.weight"])


def test_words_alone_are_a_single_speaker_asr(tmp_path: Path) -> None:
    options = replace(OPTIONS, supervision="none", speaker_tokens=False)
    scores = train_asr(data_in(tmp_path), SST, options, 0, tmp_path / "out")
    assert scores["wer"] == scores["cpwer"]
    assert load_model(tmp_path / "out" / "model")[1]["sst_level"] is None


def test_speech_on_the_fly_needs_no_training_manifest(tmp_path: Path) -> None:
    """The tokenizer learns from the words of the sources."""
    samples = make_samples(tmp_path, 12)
    found = [
        Source(
            f"u{n}", sample.audio_path, 0.0, 3 * WORD_SECONDS, ("ann", "bob")[n % 2], strip_tokens(sample.text or "")
        )
        for n, sample in enumerate(samples)
    ]
    speakers = index_sources(found, tmp_path, 16000, map)
    data = TrainingData([], samples[:2], speakers, SimulateOptions())
    loop = replace(LOOP, steps=1, validate_every=1)
    phase = AsrPhaseOptions(recorded=False, simulated=1.0, seconds=4.0, max_speakers=2, loop=loop)
    options = replace(OPTIONS, supervision="none", phases=(phase,))
    train_asr(data, SST, options, 0, tmp_path / "out")
    tokenizer = pretrained_in(tmp_path / "out" / "model").tokenizer
    assert tokenizer is not None and tokenizer.decode(tokenizer.encode("one two three")) == "one two three"
    with pytest.raises(ValueError, match="phase 'train' learns from the training manifest, which is empty"):
        train_asr(data, SST, replace(options, phases=(replace(phase, recorded=True),)), 0, tmp_path / "other")


def test_the_seed_has_an_offset(tmp_path: Path) -> None:
    data = data_in(tmp_path)
    runs = {"one": (0, 5), "same": (5, 0), "other": (5, 1)}
    for name, (seed, offset) in runs.items():
        train_asr(data, SST, replace(OPTIONS, seed_offset=offset), seed, tmp_path / name)
    one, same, other = (load_model(tmp_path / name / "model")[0]["asr.decoder.embedding.weight"] for name in runs)
    assert torch.equal(one, same) and not torch.equal(one, other)


def test_what_cannot_be_trained_is_a_sentence(tmp_path: Path) -> None:
    data = data_in(tmp_path)
    with pytest.raises(ValueError, match="supervision 'frozen' needs a diarizer"):
        train_asr(data, SST, replace(OPTIONS, supervision="frozen"), 0, tmp_path / "a")
    with pytest.raises(ValueError, match=r"session s0: not an SST: token 1, '<spk0>', is not a token of level sot"):
        train_asr(data, SstOptions(level="sot"), OPTIONS, 0, tmp_path / "f")
    with pytest.raises(ValueError, match="the validation manifest is empty"):
        train_asr(replace(data, valid=[]), SST, OPTIONS, 0, tmp_path / "b")
    simulates = replace(OPTIONS, phases=(AsrPhaseOptions(simulated=1.0, loop=LOOP),))
    with pytest.raises(ValueError, match="phase 'train' simulates on the fly, but there are no sources"):
        train_asr(data, SST, simulates, 0, tmp_path / "c")
    eend = Pretrained({}, {"model": "eend-sa", "options": {}})
    with pytest.raises(ValueError, match="the diarizer is 'eend-sa'; only a Sortformer sorts by arrival"):
        train_asr(data, SST, OPTIONS, 0, tmp_path / "d", None, eend)
    with pytest.raises(ValueError, match="the model to start from is not an ASR: it has no tokenizer"):
        train_asr(data, SST, OPTIONS, 0, tmp_path / "e", diarizer())


def test_bad_options_are_errors() -> None:
    for changed in ({"n_speakers": 21}, {"label_smoothing": 1.0}, {"adapters": -1}, {"phases": ()}):
        with pytest.raises(ValueError, match="must|need"):
            replace(OPTIONS, **changed)
    with pytest.raises(ValueError, match="phase 'x' has nothing to learn from"):
        AsrPhaseOptions("x", recorded=False)


def test_the_padding_of_a_batch_does_not_count() -> None:
    logits, tokens = torch.randn(1, 2, 5), torch.tensor([[1, 2]])
    padded = functional.pad(tokens, (0, 3), value=NOT_KNOWN)
    losses = token_losses(functional.pad(logits, (0, 0, 0, 3)), padded)
    torch.testing.assert_close(
        mean_of_clips(losses, padded != NOT_KNOWN), mean_of_clips(token_losses(logits, tokens), tokens != NOT_KNOWN)
    )


def test_the_command_trains_from_manifests(tmp_path: Path) -> None:
    manifest.write(tmp_path / "train.jsonl", make_samples(tmp_path, 3))
    trained = diarizer()
    save_model(tmp_path / "diar", trained.weights, trained.config)
    (tmp_path / "asr.toml").write_text(
        'size = "tiny"\nn_tokens = 40\nadapters = 4\n'
        "phases = [{loop = {steps = 1, warmup_steps = 1, batch_seconds = 8, validate_every = 1}}]\n",
        encoding="utf-8",
    )
    data = ("--train", tmp_path / "train.jsonl", "--valid", tmp_path / "train.jsonl", "--config", tmp_path / "asr.toml")
    command = ["train-asr", *data, "--out", tmp_path / "asr"]
    refused = CliRunner().invoke(main, [*map(str, command)])
    assert refused.exit_code == 1 and "supervision 'frozen' needs a diarizer" in refused.stderr
    command += ["--diarizer", tmp_path / "diar"]
    done = CliRunner().invoke(main, [*map(str, command)])
    assert done.exit_code == 0 and "cpWER" in done.stderr, done.output
    assert {file.name for file in (tmp_path / "asr" / "model").iterdir()} == {
        "config.json",
        "model.safetensors",
        "tokenizer.model",
    }
    assert "done already" in CliRunner().invoke(main, [*map(str, command)]).stderr
    retrained = diarizer(seed=2)  # another model of the same size
    save_model(tmp_path / "diar", retrained.weights, retrained.config)
    stale = CliRunner().invoke(main, [*map(str, command)])
    assert stale.exit_code == 1 and "its input diarizer changed" in stale.stderr
