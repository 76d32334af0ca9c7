"""Words with times: NVIDIA's, and the rules by hand."""

from __future__ import annotations

import tarfile
from pathlib import Path

import nemo2
import pytest

from sortk.formats.files import FormatError
from sortk.inference.cascade import Cascade
from sortk.inference.load import import_nemo, load_asr
from sortk.inference.recognize import (
    CanaryRecognizer,
    ParakeetRecognizer,
    RecognizeOptions,
    TokenKind,
    find_punctuation,
    find_spans,
)
from sortk.inference.transcribe import load_transcriber
from sortk.models.canary import Canary
from sortk.models.parakeet import Head, Parakeet
from sortk.models.rnnt import TimedTokens


def load_parakeet(path: Path, head: Head | None = None) -> ParakeetRecognizer:
    asr = load_asr(path)
    assert isinstance(asr.model, Parakeet)
    return ParakeetRecognizer(asr.model, asr.tokenizer, RecognizeOptions(head=head))


@pytest.mark.parametrize("head", ["transducer", "ctc"])
def test_words_of_the_committed_model(head: Head, tmp_path: Path) -> None:
    path = nemo2.find("tiny_tdt_ctc.nemo")
    import_nemo(path, tmp_path / "parakeet")
    golden = nemo2.results("tiny_tdt_ctc", complete=False)["results"]
    for source in (path, tmp_path / "parakeet"):
        [words] = load_parakeet(source, head).recognize([nemo2.clip("a_3p3")])
        expected = nemo2.words_of(golden["a_3p3" if head == "transducer" else "ctc_a_3p3"])
        assert [word[:3] for word in words] == expected
        assert all(0 < word.confidence < 1 for word in words)


@pytest.mark.parametrize("name", ["tiny_tdt", "tiny_rnnt", "tiny_tdt_ctc"])
def test_words_of_all_clips(name: str) -> None:
    golden, clips = nemo2.results(name)["results"], [nemo2.clip(clip) for clip in nemo2.CLIPS]
    heads: list[Head] = ["transducer", "ctc"] if name == "tiny_tdt_ctc" else ["transducer"]
    for head in heads:
        recognizer = load_parakeet(nemo2.find(f"{name}.nemo"), head)
        alone = [recognizer.recognize([samples])[0] for samples in clips]
        for clip, single, batched in zip(nemo2.CLIPS, alone, recognizer.recognize(clips), strict=True):
            expected = nemo2.words_of(golden[clip if head == "transducer" else f"ctc_{clip}"])
            assert [word[:3] for word in single] == [word[:3] for word in batched] == expected


@pytest.mark.parametrize("punctuation", [True, False])
@pytest.mark.parametrize("timestamps", ["auto", "approximate"])
def test_canary_flash(punctuation: bool, timestamps: str) -> None:
    golden, asr = nemo2.results("tiny_canary_flash"), load_asr(nemo2.find("tiny_canary_flash.nemo"))
    assert isinstance(asr.model, Canary)
    options = RecognizeOptions(punctuation=punctuation, timestamps="auto" if timestamps == "auto" else "approximate")
    recognizer = CanaryRecognizer(asr.model, asr.tokenizer, options)
    key = f"ts_{'yes' if timestamps == 'auto' else 'no'}_pnc_{'yes' if punctuation else 'no'}"
    assert list(recognizer.tokenizer.prompt) == golden["prompts"][key]
    clips = [nemo2.clip(clip) for clip in nemo2.CLIPS]
    written, words = recognizer.write(clips), recognizer.recognize(clips)
    for clip, (tokens, _), own in zip(nemo2.CLIPS, written, words, strict=True):
        expected = golden["results"][f"{clip}_{key}"]
        assert tokens == expected["ids"]
        assert " ".join(word.text for word in own) == expected["text"]
        assert all(0.9 < word.confidence <= 1 for word in own)
        if timestamps == "auto":
            assert [word[:3] for word in own] == nemo2.words_of(expected)


def test_a_canary_with_a_model_for_alignment_writes_no_times(tmp_path: Path) -> None:
    """canary-1b-v2 has the tokens, but NeMo asks it for text alone, and aligns the words with the second model."""
    path = tmp_path / "canary.nemo"
    path.write_bytes(nemo2.find("tiny_canary_flash.nemo").read_bytes())
    with tarfile.open(path, "a") as archive:
        archive.addfile(tarfile.TarInfo("./timestamps_asr_model_weights.ckpt"))
    import_nemo(path, tmp_path / "model")
    for model in (path, tmp_path / "model"):
        transcriber = load_transcriber(model)
        assert isinstance(transcriber, Cascade) and isinstance(transcriber.recognizer, CanaryRecognizer)
        assert not transcriber.recognizer.has_times
        assert "<|notimestamp|>" in transcriber.recognizer.tokenizer.settings.prompt


def test_languages_and_punctuation_that_a_model_does_not_have() -> None:
    asr = load_asr(nemo2.find("tiny_canary_flash.nemo"))
    assert isinstance(asr.model, Canary)
    german = CanaryRecognizer(asr.model, asr.tokenizer, RecognizeOptions(lang="de_DE"))
    assert german.tokenizer.settings.prompt[3:5] == ("<|de|>", "<|de|>")
    with pytest.raises(ValueError, match=r"this Canary does not know the language 'xx': it has no token"):
        CanaryRecognizer(asr.model, asr.tokenizer, RecognizeOptions(lang="xx"))


def test_a_parakeet_has_no_choice_of_punctuation() -> None:
    asr = load_asr(nemo2.find("tiny_tdt_ctc.nemo"))
    assert isinstance(asr.model, Parakeet)
    with pytest.raises(ValueError, match="a Parakeet writes punctuation as it was trained to"):
        ParakeetRecognizer(asr.model, asr.tokenizer, RecognizeOptions(punctuation=False))


# --- by hand


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        # A mark is at the end of the token before in TDT, and at its own start in CTC.
        ("tdt", [(2, 5), (5, 7), (7, 7), (7, 7), (12, 13)]),
        ("rnnt", [(2, 3), (5, 6), (6, 7), (9, 10), (12, 13)]),
        ("ctc", [(1, 2), (2, 5), (5, 5), (6, 6), (9, 12)]),
    ],
)
def test_spans_of_tokens(kind: TokenKind, expected: list[tuple[int, int]]) -> None:
    marks = find_punctuation(["▁a", "b", "?", "!c", "▁;"])
    assert marks == {"?", "!"}
    durations = [3, 2, 3, 3, 1] if kind == "tdt" else []
    tokens = TimedTokens([0] * 5, [2, 5, 6, 9, 12], durations, [1.0] * 5)
    assert find_spans(tokens, ["a", "b", "?", "!", "a"], kind, marks) == expected


def test_a_damaged_parakeet_is_refused_in_one_sentence(tmp_path: Path) -> None:
    whole = nemo2.find("tiny_tdt_ctc.nemo").read_bytes()
    path = tmp_path / "cut.nemo"
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(FormatError, match=r"cut.nemo: .*") as error:
        load_asr(path)
    assert "\n" not in str(error.value)
