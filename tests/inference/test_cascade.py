"""Any ASR with any diarizer: who says a word, pieces, masks, and the multitalker Parakeet."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path

import nemo2
import numpy as np
import numpy.typing as npt
import pytest
import soundfile
import torch
from click.testing import CliRunner, Result
from torch import Tensor

import sortk
from sortk.cli import main
from sortk.formats.files import FormatError
from sortk.formats.tokens import Tokenizer, settings_of_parakeet, train_tokenizer
from sortk.inference.cascade import Cascade, MultitalkerTranscriber, assign_speakers
from sortk.inference.diarize import DiarizeOptions, Diarizer
from sortk.inference.load import LoadedDiarizer
from sortk.inference.pieces import TranscribeOptions
from sortk.inference.recognize import RecognizedWord
from sortk.inference.transcribe import load_transcriber
from sortk.models.fastconformer import FastConformerOptions
from sortk.models.features import FeatureOptions
from sortk.models.multitalker import Multitalker, MultitalkerOptions, split_speakers
from sortk.models.rnnt import TransducerOptions
from sortk.models.sortformer import Sortformer, SortformerOptions
from sortk.models.transformer import TransformerOptions
from sortk.records import Session

Probs = npt.NDArray[np.float32]


# --- the rule, with posteriors by hand


def test_a_word_belongs_to_the_largest_mean_over_its_own_frames() -> None:
    probs = np.array(
        [
            [0.9, 0.1, 0.0],  # 0.00 s
            [0.9, 0.6, 0.0],  # 0.08 s: overlap
            [0.6, 0.9, 0.0],
            [0.4, 0.9, 0.0],  # 0.24 s
            [0.1, 0.1, 0.0],  # 0.32 s: nobody
            [0.2, 0.1, 0.0],
            [0.3, 0.2, 0.0],
            [0.0, 0.1, 0.8],  # 0.56 s
        ],
        np.float32,
    )
    words = [
        (0.0, 0.16),  # 0.9 and 0.35
        (0.08, 0.24),  # overlap: 0.75 and 0.75, the first of equals
        (0.08, 0.32),  # overlap: 0.63 and 0.8, though speaker 0 is active longer in it and around it
        (0.16, 0.16),  # without duration: the frame at 0.16
        (0.32, 0.40),  # nobody is active: speaker 1 is nearest, in the frame before
        (0.48, 0.56),  # nobody: speaker 2 is nearest, in the frame after, whatever 0.3 and 0.2 say
        (0.40, 0.48),  # nobody, frames 3 and 7 equally near: the earlier
        (0.9, 1.2),  # after the end: the last frame
    ]
    assert assign_speakers(words, probs, 0.08) == [0, 0, 1, 1, 1, 2, 1, 2]


def test_frames_of_ten_milliseconds() -> None:
    probs = np.zeros((100, 2), np.float32)
    probs[:30, 0], probs[30:, 1] = 0.8, 0.9
    assert assign_speakers([(0.0, 0.3), (0.2, 0.42), (0.2, 0.41), (0.26, 0.31)], probs, 0.01) == [0, 1, 1, 0]


def test_nobody_is_ever_active() -> None:
    probs = np.array([[0.1, 0.3], [0.2, 0.4]], np.float32)
    assert assign_speakers([(0.0, 0.1)], probs, 0.08) == [1]
    assert assign_speakers([(0.0, 0.1)], np.zeros((0, 2), np.float32), 0.08) == [0]


# --- recordings

DIARIZER = SortformerOptions(
    n_speakers=2,
    features=FeatureOptions(n_mels=16),
    encoder=FastConformerOptions(d_model=16, n_layers=1, n_heads=2, subsampling_channels=4),
    transformer=TransformerOptions(d_model=16, n_layers=1, n_heads=2, d_inner=32),
)


class KnownDiarizer(Diarizer):
    """Says what the test wants."""

    def __init__(self, probs: Probs) -> None:
        super().__init__(LoadedDiarizer(Sortformer(DIARIZER).eval()))
        self.probs = probs

    def posteriors_of(self, sessions, on_error=None, on_progress=float):  # type: ignore[no-untyped-def]
        return iter([(session, self.probs) for session in sessions])


class Clock:
    """Recognises the number of every second that is not silent, as a word of half a second in its middle."""

    piece_seconds = 10.0
    device = torch.device("cpu")

    def __init__(self) -> None:
        self.clips: list[Tensor] = []

    def recognize(
        self, clips: Sequence[Tensor], speech: Sequence[Sequence[tuple[float, float]]] | None = None
    ) -> list[list[RecognizedWord]]:
        self.clips += clips
        found = []
        for clip in clips:
            seconds = clip[: len(clip) // 16000 * 16000].view(-1, 16000)[:, 8000]
            found.append(
                [
                    RecognizedWord(f"w{100 * s:.0f}", n + 0.25, n + 0.75, 0.5)
                    for n, s in enumerate(seconds.tolist())
                    if s
                ]
            )
        return found


def seconds_of(n_seconds: int) -> npt.NDArray[np.float32]:
    """A sample of second n is (n + 1) / 100."""
    return np.repeat(np.arange(1, n_seconds + 1, dtype=np.float32) / 100, 16000)


def turns(n_seconds: float, *spans: tuple[int, float, float]) -> Probs:
    probs = np.full((round(n_seconds / 0.08), 2), 0.1, np.float32)
    for speaker, start, end in spans:
        probs[round(start / 0.08) : round(end / 0.08), speaker] = 0.9
    return probs


@pytest.fixture
def long_recording(tmp_path: Path) -> Session:
    soundfile.write(tmp_path / "long.wav", seconds_of(24), 16000, subtype="FLOAT")
    return Session("long", tmp_path / "long.wav")


def test_words_of_all_pieces_have_the_speakers_and_times_of_the_recording(long_recording: Session) -> None:
    # Silences around 8 s and 16 s, between two seconds of the clock.
    probs = turns(24, (0, 0.0, 7.84), (1, 8.16, 15.84), (0, 16.16, 24.0))
    clock, told = Clock(), []
    cascade = Cascade(clock, TranscribeOptions(), KnownDiarizer(probs))
    [(_, words)] = cascade.transcribe([long_recording], on_done=told.append)
    assert sorted(len(clip) / 16000 for clip in clock.clips) == [8.0, 8.0, 8.0]
    assert [(w.text, w.start, w.end, w.speaker) for w in words] == [
        (f"w{n + 1}", n + 0.25, n + 0.75, f"speaker_{int(8 <= n < 16)}") for n in range(24)
    ]
    assert words[0].confidence == 0.5 and sum(told) == 24.0
    # An array is transcribed as the file is, a window of a session has times of its file.
    assert [(w.text, w.start) for w in cascade(seconds_of(24))] == [(w.text, w.start) for w in words]


def test_without_a_diarizer_one_speaker_says_everything(long_recording: Session) -> None:
    words = Cascade(Clock(), TranscribeOptions(piece_seconds=30.0))(str(long_recording.audio_path))
    assert len(words) == 24 and {word.speaker for word in words} == {"speaker_0"}


def test_overlap_mask_writes_each_speaker_alone(long_recording: Session) -> None:
    """Both speak from 2 s to 4 s; the words there are written once for each."""
    probs = turns(24, (0, 0.0, 4.0), (1, 2.0, 6.0))
    clock = Clock()
    cascade = Cascade(clock, TranscribeOptions(overlap="mask", piece_seconds=30.0), KnownDiarizer(probs))
    words = cascade(long_recording)
    said = {name: [w.text for w in words if w.speaker == name] for name in ("speaker_0", "speaker_1")}
    assert said == {"speaker_0": ["w1", "w2", "w3", "w4"], "speaker_1": ["w3", "w4", "w5", "w6"]}
    silenced = clock.clips[0]
    assert silenced[int(3.9 * 16000)] == pytest.approx(0.04) and not silenced[int(4.2 * 16000) :].any()
    with pytest.raises(ValueError, match="--overlap mask needs a diarizer"):
        Cascade(clock, TranscribeOptions(overlap="mask"))


# --- multitalker

PIECES = train_tokenizer(["one two three four five six seven eight nine ten"], 30, 0)
TOKENIZER = Tokenizer(PIECES.contents, settings_of_parakeet(list(PIECES.contents)))
MULTITALKER = MultitalkerOptions(
    n_tokens=TOKENIZER.n_tokens,
    features=FeatureOptions(n_mels=16, gain=False, normalize="none"),
    encoder=FastConformerOptions(
        d_model=16, n_layers=2, n_heads=2, subsampling_channels=4, causal_subsampling=True, causal_convolution=True,
        conv_norm="layer_norm", left_context=8, right_context=3,
    ),
    transducer=TransducerOptions(d_prediction=8, n_layers=1, d_joint=12, max_symbols=2),
    contexts=((8, 3), (8, 0)),
)  # fmt: skip


def multitalker() -> Multitalker:
    torch.manual_seed(4)
    model = Multitalker(MULTITALKER).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
        model.transducer.joint.out.weight.mul_(6.0)
    return model


def noise(seconds: float, tmp_path: Path) -> Session:
    samples = np.random.default_rng(1).integers(-3000, 3000, round(seconds * 16000)).astype(np.int16)
    soundfile.write(tmp_path / "noise.wav", samples, 16000)
    return Session("noise", tmp_path / "noise.wav")


@pytest.mark.parametrize("seconds", [3.3, 47.0])
@pytest.mark.parametrize("latency", [None, 0.08])
def test_multitalker_in_steps_is_one_pass_for_each_speaker(
    tmp_path: Path, seconds: float, latency: float | None
) -> None:
    session, model = noise(seconds, tmp_path), multitalker()
    probs = np.random.default_rng(2).random((round(seconds * 100 + 7) // 8, 3)).astype(np.float32)
    probs[:, 1] *= 0.4  # never active
    transcriber = MultitalkerTranscriber(model, TOKENIZER, TranscribeOptions(latency=latency), KnownDiarizer(probs))
    [(_, words)] = transcriber.transcribe([session])
    samples = torch.from_numpy(soundfile.read(session.audio_path, dtype="float32")[0])
    p, q = split_speakers(torch.from_numpy(probs), torch.tensor([0, 2]))
    with torch.inference_mode():
        mel, _ = model.features(samples[None])
        frames, _ = model.encoder.subsample(mel)
        n_frames = frames.shape[1]
        # Frame t of the encoder ends where frame t - 1 of the diarizer does.
        p, q = (torch.nn.functional.pad(x, (1, 0), value=v)[:, :n_frames] for x, v in ((p, 1.0), (q, 0.0)))
        encoded = model.encode_frames(frames.expand(2, -1, -1), None, p, q, transcriber.context)
        tokens = model.decode(encoded).tokens
    for name, own in zip(("speaker_0", "speaker_2"), tokens, strict=True):
        expected = [(word.text, word.start, word.end) for word in transcriber.find_words(own)]
        assert sorted((w.text, w.start, w.end) for w in words if w.speaker == name) == sorted(expected)
    assert {word.speaker for word in words} == {"speaker_0", "speaker_2"}


def test_multitalker_from_a_pipe_is_the_recording(tmp_path: Path) -> None:
    session, model = noise(9.7, tmp_path), multitalker()
    torch.manual_seed(0)
    diarizer = Diarizer(LoadedDiarizer(Sortformer(DIARIZER).eval()), DiarizeOptions(streaming="1.04"))
    transcriber = MultitalkerTranscriber(model, TOKENIZER, TranscribeOptions(threshold=0.01), diarizer)
    expected = transcriber(session)
    pcm = soundfile.read(session.audio_path, dtype="int16")[0].tobytes()
    words = list(transcriber.transcribe_pcm(io.BytesIO(pcm)))
    assert words
    found = sorted((w.speaker, w.start, w.end, w.text) for w in words)
    assert found == sorted((w.speaker, w.start, w.end, w.text) for w in expected)


def test_what_a_multitalker_parakeet_needs() -> None:
    model, options = multitalker(), TranscribeOptions()
    with pytest.raises(ValueError, match="needs a diarizer: give one"):
        MultitalkerTranscriber(model, TOKENIZER, options)
    diarizer = KnownDiarizer(np.zeros((1, 2), np.float32))
    with pytest.raises(ValueError, match=r"no latency of 9 s, only 0.32, 0.08"):
        MultitalkerTranscriber(model, TOKENIZER, TranscribeOptions(latency=9.0), diarizer)
    with pytest.raises(ValueError, match="leave out --overlap"):
        MultitalkerTranscriber(model, TOKENIZER, TranscribeOptions(overlap="mask"), diarizer)


# --- the command, with NVIDIA's files


def run(*command: object, **settings: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in command], **settings)  # type: ignore[arg-type]


def test_two_files_make_an_srt() -> None:
    """With the committed models: a Parakeet and a Sortformer."""
    asr, diarizer, clip = (nemo2.find(name) for name in ("tiny_tdt_ctc.nemo", "tiny_sortformer.nemo", "a_3p3.wav"))
    models = ("--model", asr, "--diarizer", diarizer, "--device", "cpu")
    result = run("transcribe", clip, *models, "--format", "srt")
    assert result.exit_code == 0, result.output
    assert result.stdout == "1\n00:00:00,000 --> 00:00:03,280\nSpeaker 1: esidesident,ay comeybbCc!esidat\n"
    for head, key in (((), "a_3p3"), (("--ctc",), "ctc_a_3p3")):
        result = run("transcribe", clip, *models, "--format", "json", *head)
        words = [w for segment in json.loads(result.stdout)["segments"] for w in segment["words"]]
        expected = nemo2.words_of(nemo2.results("tiny_tdt_ctc", complete=False)["results"][key])
        assert sorted((w["start"], w["end"], w["word"]) for w in words) == sorted((s, e, w) for w, s, e in expected)
    one = run("transcribe", clip, *models, "--format", "json", "--speakers", 1)
    assert json.loads(one.stdout)["speakers"] == ["speaker_0"]
    masked = run("transcribe", clip, *models, "--format", "txt", "--overlap", "mask")
    assert masked.exit_code == 0, masked.output


def test_python() -> None:
    asr, diarizer, clip = (nemo2.find(name) for name in ("tiny_tdt_ctc.nemo", "tiny_sortformer.nemo", "a_3p3.wav"))
    transcriber = sortk.load_transcriber(str(asr), str(diarizer), device="cpu")
    words = transcriber(str(clip))
    samples, _ = soundfile.read(clip, dtype="float32")
    assert repr(transcriber) == "<Cascade: <Diarizer: Sortformer, 4 speakers, cpu>, cpu>"
    assert [(w.text, w.start, w.speaker) for w in transcriber(samples)] == [(w.text, w.start, w.speaker) for w in words]
    assert words.to_text("srt").startswith("1\n") and len(words.to_annotation()) == len(words)


@pytest.mark.parametrize("asr", ["tiny_tdt", "tiny_rnnt", "tiny_canary_flash", "tiny_multitalker"])
def test_every_asr_with_a_diarizer_of_eight_speakers(asr: str, tmp_path: Path) -> None:
    models = ("--model", nemo2.find(f"{asr}.nemo"), "--diarizer", nemo2.find("tiny_sortformer_8spk.nemo"))
    result = run("transcribe", nemo2.find("b_10.wav"), *models, "--format", "vtt", "--device", "cpu")
    assert result.exit_code == 0 and result.stdout.startswith("WEBVTT\n\n00:00:00"), result.output


def test_options_that_do_not_fit_are_sentences() -> None:
    asr, clip = nemo2.find("tiny_tdt_ctc.nemo"), nemo2.find("a_3p3.wav")
    no_choice = run("transcribe", clip, "--model", asr, "--no-pnc")
    assert no_choice.exit_code == 1 and "a Parakeet writes punctuation as it was trained to" in no_choice.stderr
    assert run("transcribe", clip, "--model", asr, "--speakers", 2).exit_code == 2
    with pytest.raises(FormatError, match="not a diarizer"):
        load_transcriber(asr, asr, device="cpu")
    live = run("transcribe", "-", "--model", asr, "--diarizer", nemo2.find("tiny_sortformer.nemo"), input=b"")
    assert live.exit_code == 1 and "only a multitalker Parakeet writes a stream" in live.stderr
