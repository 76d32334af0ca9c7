from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import soundfile

from sortk.formats import audio, manifest, mixlist, rttm
from sortk.formats.annotation import session_segments
from sortk.formats.files import FormatError
from sortk.prepare.librispeechmix import ListedMixtures, RandomMixtures, mix_at_random
from sortk.prepare.render import write_set
from sortk.records import Source

LISTS = sorted((Path(__file__).parents[3] / "shared" / "data" / "refs" / "librispeechmix").glob("*.jsonl.gz"))


def test_three_wavs_are_summed_with_the_listed_delays(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    wavs = [rng.integers(-5000, 5000, n).astype(np.int16) for n in (16000, 24000, 8000)]
    delays = [0.0, 0.7312345, 1.99999]
    names = [f"dev/{n}/1/{n}-1-0000.wav" for n in range(3)]
    for name, wav in zip(names, wavs, strict=True):
        (tmp_path / name).parent.mkdir(parents=True)
        soundfile.write(tmp_path / name, wav, 16000, subtype="PCM_16")
    line = {
        "id": "dev-3mix/dev-3mix-0000", "mixed_wav": "x.wav", "wavs": names, "delays": delays,
        "durations": [1.0, 1.4995, 0.5], "speakers": ["0", "1", "2"], "texts": ["A B", "C D E", "F"],
    }  # fmt: skip
    (tmp_path / "list.jsonl").write_text(json.dumps(line) + "\n", encoding="utf-8")
    mixer = ListedMixtures(mixlist.read(tmp_path / "list.jsonl"), tmp_path)
    write_set(mixer, 1, tmp_path / "out" / "manifest.jsonl", map)
    session = manifest.read(tmp_path / "out" / "manifest.jsonl")[0]
    starts = [int(16000 * delay) for delay in delays]
    expected = np.zeros(max(start + len(wav) for start, wav in zip(starts, wavs, strict=True)), np.int16)
    for start, wav in zip(starts, wavs, strict=True):
        expected[start : start + len(wav)] += wav
    assert np.array_equal((audio.read(session.audio_path) * 32768).astype(np.int16), expected)
    assert session.session_id == "dev-3mix-0000" and session.rttm_path
    assert [segment.speaker for segment in rttm.read(session.rttm_path)] == ["0", "1", "2"]
    (tmp_path / "list.jsonl").write_text(json.dumps(line | {"durations": [1.0, 2.0, 0.5]}) + "\n", encoding="utf-8")
    with pytest.raises(FormatError, match=r"1-1-0000.wav: is 1.500 s long, but the list says 2.000 s"):
        ListedMixtures(mixlist.read(tmp_path / "list.jsonl"), tmp_path).plan(0)


@pytest.mark.skipif(not LISTS, reason="the shared data is not beside this checkout")
@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.name)
def test_every_official_list_plans(path: Path) -> None:
    mixtures = mixlist.read(path)
    mixer = ListedMixtures(mixtures, Path("LibriSpeech"))
    for index, mixture in enumerate(mixtures):
        plan = mixer.plan(index)
        assert len(plan.turns) == len(mixture.utterances)
        assert sum(len(words) for words in (utterance.text.split() for utterance in mixture.utterances)) == len(
            plan.words()
        )


def test_training_mixtures_start_apart_and_overlap(tmp_path: Path) -> None:
    sources = [
        Source(f"{s}-{u}", tmp_path / f"{s}.flac", 10.0 * u, 2.0 + u, f"s{s}", "one two three")
        for s in range(6)
        for u in range(4)
    ]
    mixer = RandomMixtures(sources, 0, "train")
    counts = set()
    for index in range(200):
        segments = mixer.plan(index).segments()
        counts.add(len(segments))
        assert len({segment.speaker for segment in segments}) == len(segments)
        for before, after in pairwise(segments):
            assert after.start - before.start >= 0.5 - 1e-4
            assert after.start <= max(segment.end for segment in segments[: segments.index(after)])
    assert counts == {1, 2, 3}
    assert mixer.plan(17) == RandomMixtures(sources, 0, "train").plan(17)
    with pytest.raises(ValueError, match="mixtures of 3 need as many speakers"):
        RandomMixtures(sources[:8], 0, "train")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"id": "a"}', "wavs is not a list"),
        ('{"id": "a", "wavs": [], "speakers": [], "texts": [], "delays": [], "durations": []}', "lists of one length"),
        (
            '{"id": "a", "wavs": ["x"], "speakers": ["s"], "texts": ["t"], "delays": [-1], "durations": [1]}',
            "delay is neg",
        ),
        ('{"id": "a", "wavs": ["x"], "speakers": ["s"], "texts": [3], "delays": [0], "durations": [1]}', "text is not"),
        ("{", "broken JSON"),
    ],
)
def test_a_broken_list_names_its_line(tmp_path: Path, line: str, reason: str) -> None:
    path = tmp_path / "list.jsonl"
    path.write_text("\n" + line + "\n", encoding="utf-8")
    with pytest.raises(FormatError, match=f"list.jsonl, line 2: .*{reason}"):
        mixlist.read(path)


def test_words_of_a_speaker_are_joined() -> None:
    """Three digits of each speaker follow one another without a gap; the next speaker starts half a second later."""
    sources = [
        Source(f"{speaker}{n}", Path(f"{speaker}.wav"), offset=n, duration=0.5 + n / 10, speaker=speaker, text=str(n))
        for speaker in "abc"
        for n in range(4)
    ]
    mixtures = [RandomMixtures(sources, 0, "train", n_joined=3).draw(index) for index in range(20)]
    for mixture in mixtures:
        by_speaker: dict[str, list[mixlist.Delayed]] = {}
        for utterance in mixture.utterances:
            by_speaker.setdefault(utterance.speaker, []).append(utterance)
        for own in by_speaker.values():
            assert len(own) == 3
            for before, after in pairwise(own):
                assert after.delay == pytest.approx(before.delay + before.duration)
        starts = [own[0].delay for own in by_speaker.values()]
        assert all(later - earlier >= 0.5 for earlier, later in pairwise(starts))
    assert {len({part.speaker for part in mixture.utterances}) for mixture in mixtures} == {1, 2, 3}


def test_random_mixtures_become_the_set_of_their_split(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    sources = []
    for number, split in enumerate(["train", "train", "train", "valid"]):
        path = tmp_path / f"{number}.flac"
        audio.write_flac(path, rng.normal(0, 0.1, 16_000).astype(np.float32))
        sources.append(Source(f"u{number}", path, 0.0, 1.0, f"s{number}", "some words", split=split))
    summaries = mix_at_random(sources, {"train": 12}, 0, tmp_path / "out", map)
    sessions = manifest.read(tmp_path / "out" / "train.jsonl")
    assert [session.session_id for session in sessions[:2]] == ["train-0000000", "train-0000001"]
    assert {session.num_speakers for session in sessions} == {1, 2, 3} and len(sessions) == 12
    assert summaries["train"].to_json()["sessions"] == 12
    speakers = {segment.speaker for session in sessions for segment in session_segments(session)}
    assert speakers == {"s0", "s1", "s2"}
    with pytest.raises(ValueError, match="mixtures of 3 need as many speakers; the sources have 1"):
        mix_at_random(sources, {"valid": 1}, 0, tmp_path / "none", map)
