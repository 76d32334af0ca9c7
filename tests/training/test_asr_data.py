from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from spoken import WORD_SECONDS, make_samples

from sortk.formats.files import FormatError
from sortk.formats.sst import SstOptions, parse_sst, strip_tokens
from sortk.formats.tokens import train_tokenizer
from sortk.prepare.simulate import SimulateOptions, Simulator, index_sources
from sortk.records import Segment, Session, Source
from sortk.training.data import BatchLoader, RecordedSource, SimulatedSource, collate, find_end
from sortk.training.options import BatchLimit
from sortk.training.targets import NO_SPAN, NOT_KNOWN, AsrLabels

TOKENIZER = train_tokenizer(["one two three one two three"], 40, n_speakers=2)
LABELS = AsrLabels(TOKENIZER, 2, SstOptions(), max_tokens=60)
WITH_TURNS = replace(LABELS, needs_turns=True)
PAD = TOKENIZER.pad


def word(text: str, speaker: str, start: float, end: float) -> Segment:
    return Segment("s", speaker, start, end, text)


def test_frames_name_the_pieces_of_their_word() -> None:
    pieces = TOKENIZER.encode("three")
    words = [word("three", "ann", 1.0 + 0.08, 1.0 + 0.08 * (1 + 2 * len(pieces)))]
    named = LABELS.frame_token_targets(words, 1.0, 2 * len(pieces) + 3)
    assert named.tolist() == [PAD, *np.repeat(pieces, 2).tolist(), PAD, PAD]


def test_frames_with_two_words_name_neither() -> None:
    words = [word("one", "ann", 0.0, 0.32), word("two", "bob", 0.16, 0.48)]
    named = LABELS.frame_token_targets(words, 0.0, 8)
    assert named[2:4].tolist() == [NOT_KNOWN] * 2 and named[6:].tolist() == [PAD] * 2
    assert NOT_KNOWN not in named[[0, 1, 4, 5]]


def test_tokens_have_the_frames_of_their_word_in_the_order_of_the_transcript() -> None:
    """ann says "one three" while bob says "two": at level word by their starts, at level segment ann's words first."""
    words = [word("one", "ann", 0.0, 0.16), word("two", "bob", 0.16, 0.40), word("three", "ann", 0.24, 0.48)]
    one, two, three = (0, 2), (2, 5), (3, 6)
    n_one, n_two, n_three = (len(TOKENIZER.encode(text)) for text in ("one", "two", "three"))
    none = (NO_SPAN, NO_SPAN)

    def spans_of(labels: AsrLabels, text: str, offset: float = 0.0, n_frames: int = 6) -> list[tuple[int, int]]:
        return [tuple(span) for span in labels.token_span_targets(words, text, offset, n_frames).tolist()]

    by_word = [none, *[one] * (1 + n_one), *[two] * (1 + n_two), *[three] * (1 + n_three), none]
    assert spans_of(LABELS, "<spk0> one <spk1> two <spk0> three") == by_word
    by_segment = [none, *[one] * (1 + n_one), *[three] * n_three, *[two] * (1 + n_two), none]
    labels = replace(LABELS, sst=SstOptions(level="segment"))
    assert spans_of(labels, "<spk0> one three <spk1> two") == by_segment
    assert spans_of(LABELS, "one two three") == [none, *[one] * n_one, *[two] * n_two, *[three] * n_three, none]
    assert set(spans_of(LABELS, "<spk0> one <spk0> three")) == {none}, "another text than the words are"
    assert spans_of(LABELS, "one two three", n_frames=3)[-1 - n_three :] == [none] * (1 + n_three), "after the end"


def test_who_speaks_is_in_the_order_of_the_transcript() -> None:
    """bob makes a noise first, but ann says the first word: she is <spk0>."""
    segments = [word("", "bob", 0.0, 0.16), word("", "ann", 0.16, 0.32), word("", "bob", 0.32, 0.48)]
    words = [word("one", "ann", 0.16, 0.32), word("two", "bob", 0.32, 0.48)]
    ann, bob = [0, 0, 1, 1, 0, 0], [1, 1, 0, 0, 1, 1]
    assert LABELS.speaker_targets(segments, words, 0.0, 6).T.tolist() == [ann, bob]
    assert LABELS.speaker_targets(segments, [], 0.0, 6).T.tolist() == [bob, ann]
    assert LABELS.speaker_targets(segments[:1], [], 0.0, 6).T.tolist() == [[1, 1, 0, 0, 0, 0], [0] * 6]


def test_samples_become_batches(tmp_path: Path) -> None:
    sessions = make_samples(tmp_path, 3)
    sessions[2] = replace(sessions[2], duration=0.64, text="<spk0> one")
    source = RecordedSource(sessions, WITH_TURNS)
    examples = [source.load(n, 0) for n in range(3)]
    assert examples[0].name == "s0"
    batch = collate(examples).to(torch.device("cpu"))
    assert batch.tokens is not None and batch.frame_tokens is not None
    assert batch.texts == tuple(example.text for example in examples)
    assert batch.tokens.shape[0] == 3 and batch.frame_tokens.shape == batch.targets.shape[:2] == (3, 12)
    assert batch.lengths is not None and batch.lengths.tolist() == [15360, 15360, 10240]
    for row, session in zip(batch.tokens.tolist(), sessions, strict=True):
        known = [token for token in row if token != NOT_KNOWN]
        assert (known[0], known[-1]) == (TOKENIZER.prompt[0], TOKENIZER.end)
        assert TOKENIZER.decode(known) == session.text
    assert (batch.frame_tokens[2, 8:] == NOT_KNOWN).all()
    assert batch.token_spans is not None and batch.token_spans.shape == (*batch.tokens.shape, 2)


def test_an_empty_transcript_is_an_end_and_nothing_else(tmp_path: Path) -> None:
    session = replace(make_samples(tmp_path, 1)[0], text="")
    example = RecordedSource([session], LABELS).load(0, 0)
    assert example.tokens == [*TOKENIZER.prompt, TOKENIZER.end]


def test_speaker_tokens_can_be_left_out(tmp_path: Path) -> None:
    plain = replace(LABELS, speaker_tokens=False)
    assert plain.tokenize("s", "<spk0> one <spk1> two")[0] == "one two"


def test_a_loader_gives_transcripts_in_other_processes_too(tmp_path: Path) -> None:
    source = RecordedSource(make_samples(tmp_path, 4), LABELS)
    batches = [list(BatchLoader([source], BatchLimit(seconds=2.0), 0, n_workers).load_epoch(0)) for n_workers in (0, 1)]
    for one, other in zip(*batches, strict=True):
        assert one.tokens is not None and other.tokens is not None
        assert one.texts == other.texts and torch.equal(one.tokens, other.tokens)


@pytest.mark.parametrize("n_workers", [0, 1])
def test_broken_audio_is_one_sentence(tmp_path: Path, n_workers: int) -> None:
    session = make_samples(tmp_path, 1)[0]
    session.audio_path.write_bytes(b"not audio")
    loader = BatchLoader([RecordedSource([session], LABELS)], BatchLimit(samples=1), 0, n_workers)
    with pytest.raises(FormatError, match=r"^\S+s0\.flac: [^\n]+$"):
        list(loader.load_epoch(0))


def _words(session: Session) -> str:
    return strip_tokens(session.text or "")


def test_simulated_speech_has_its_transcript(tmp_path: Path) -> None:
    """Two hummers; what is written, who speaks and what frames name all tell of the same plan."""
    found = [
        Source(f"u{n}", session.audio_path, 0.0, 3 * WORD_SECONDS, ("ann", "bob")[n % 2], _words(session))
        for n, session in enumerate(make_samples(tmp_path, 12))
    ]
    options = SimulateOptions(seconds=12, min_speakers=2, max_speakers=2)
    simulator = Simulator(index_sources(found, tmp_path, 16000, map), options, 0, "asr-test")
    labels = replace(LABELS, max_tokens=200)
    source = SimulatedSource(simulator, 3, labels)
    assert (len(source), source.seconds(0, epoch=0)) == (3, 12)
    example, again, later = source.load(1, 0), source.load(1, 0), source.load(1, 1)
    assert example.text == again.text and np.array_equal(example.samples, again.samples)
    assert example.text != later.text  # another epoch, another conversation
    plan = simulator.plan(1)
    words = sorted(plan.words(), key=lambda word: word.start)
    spoken = parse_sst(example.text, "word")
    assert [turn.words for turn in spoken] == [(word.text,) for word in words]
    order = list(dict.fromkeys(word.speaker for word in words))
    assert [speaker for speaker, _ in spoken] == [order.index(word.speaker) for word in words]
    assert example.tokens == [*TOKENIZER.prompt, *TOKENIZER.encode(example.text), TOKENIZER.end]
    first_frames = example.targets.argmax(axis=0).tolist()
    assert first_frames == sorted(first_frames)
    shorter = SimulatedSource(simulator, 3, labels, min_seconds=2.0).load(1, 0)
    n_samples, n_spoken = len(shorter.samples), len(parse_sst(shorter.text, "word"))
    assert 2 * 16000 <= n_samples < 12 * 16000 and parse_sst(shorter.text, "word") == spoken[:n_spoken]
    assert all(word.end <= n_samples / 16000 + 1e-4 for word in words[:n_spoken])
    assert all(word.end > n_samples / 16000 for word in words[n_spoken:])
    assert len(shorter.frame_tokens) == len(shorter.targets) == -(-(n_samples // 160) // 8)
    middle = int((words[0].start + words[0].end) / 2 / 0.08)
    assert example.frame_tokens[middle] in TOKENIZER.encode(words[0].text)


def test_simulated_speech_is_cut_between_words() -> None:
    words = [word("one", "ann", 1.0, 2.0), word("two", "ann", 2.0, 3.0), word("three", "bob", 2.5, 4.0)]
    assert find_end(words, 0.5) == 0.5 and find_end(words, 9.0) == 9.0  # nobody speaks
    assert find_end(words, 1.9) == 2.0
    assert find_end(words, 2.9) == 2.0  # at 3.0 bob is in the middle of a word
    assert find_end(words, 3.1) == 4.0


def test_what_cannot_be_learned_from_is_named(tmp_path: Path) -> None:
    session = make_samples(tmp_path, 1)[0]

    def refuse(sentence: str, **changed: object) -> None:
        with pytest.raises(ValueError, match=sentence):
            RecordedSource([replace(session, **changed)], WITH_TURNS).load(0, 0)  # type: ignore[arg-type]

    refuse("session s0 has no text, which training requires", text=None)
    refuse("session s0 has no duration", duration=None)
    refuse('session s0 has no rttm_filepath, which supervision = "truth" requires', rttm_path=None)
    refuse("session s0: the text holds '<spk7>', but this tokenizer knows 2 speakers", text="<spk7> one")
    refuse("session s0: its text has .* tokens, more than the 60 positions of the decoder", text="one " * 60)
