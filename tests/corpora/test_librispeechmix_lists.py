from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from miniatures import write_text

from sortk.cli import main
from sortk.corpora.librispeechmix import PUBLISHED, read_mixtures
from sortk.formats import audio, manifest, mixlist, rttm, sources

REFERENCE = Path(__file__).parents[3] / "shared" / "data" / "refs" / "librispeechmix"


def sortk(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def write_librispeech(folder: Path) -> None:
    """Two speakers in dev-clean and test-clean, one second each; one more speaker in train-clean-100."""
    for subset, speakers in {"dev-clean": (84, 174), "test-clean": (61, 121), "train-clean-100": (19,)}.items():
        for speaker in speakers:
            name = f"{speaker}-1"
            chapter = folder / subset / str(speaker) / "1"
            samples = np.full(16_000, speaker, np.int16)
            audio.write_flac(chapter / f"{name}-0000.flac", samples)
            write_text(chapter / f"{name}.trans.txt", f"{name}-0000 WELL YES\n")


def listed(name: str, speakers: list[int]) -> str:
    """A line as the official lists have them: speaker i starts 0.5 i seconds after the first."""
    subset = name.rsplit("-", 1)[0]
    wavs = [f"{subset}/{speaker}/1/{speaker}-1-0000.wav" for speaker in speakers]
    values = {
        "delays": [0.5 * index for index in range(len(speakers))],
        "durations": [1.0] * len(speakers),
        "genders": ["m"] * len(speakers),
        "id": f"{name}/{name}-0000",
        "mixed_wav": f"{name}/{name}-0000.wav",
        "speaker_profile": [[wavs[0]]],
        "speaker_profile_index": [0] * len(speakers),
        "speakers": [str(speaker) for speaker in speakers],
        "texts": ["WELL YES"] * len(speakers),
        "wavs": wavs,
    }
    return json.dumps(values) + "\n"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "LibriSpeechMix"
    write_librispeech(folder / "data" / "LibriSpeech")
    for name in PUBLISHED:
        n_speakers = int(name[-4])
        speakers = [84, 174] if name.startswith("dev") else [61, 121]
        write_text(folder / "list" / f"{name}.jsonl", listed(name, (speakers * 2)[: min(n_speakers, 2)]))
    return folder


RECIPE = """
summary = "mixtures as listed"
[prepare]
corpora = [{{ corpus = "librispeechmix", corpus_dir = "{folder}", sets = {{ {sets} }} }}]
[simulate]
hours = {{ {hours} }}
[clean]
sad = "none"
"""


def test_stage_0_lists_what_stage_1_mixes(checkout: Path, tmp_path: Path) -> None:
    sets = 'train = "train", dev-clean-1mix = "valid", dev-clean-2mix = "valid", test-clean-2mix = "test2"'
    write_text(tmp_path / "recipe.toml", RECIPE.format(folder=checkout, sets=sets, hours=""))
    exp = tmp_path / "exp"
    result = sortk("run", "--recipe", tmp_path, "--exp", exp, "--stop-stage", 2)
    assert result.exit_code == 0, result.output
    assert "librispeechmix dev-clean-2mix: 1 session, 0.00 h, but published are 2703 sessions" in result.stderr
    prepared = exp / "00-prepare"
    assert [source.split for source in sources.read(prepared / "sources.jsonl")] == ["train"]
    assert [m.mixture_id for m in mixlist.read(prepared / "mixtures" / "valid.jsonl")] == [
        "dev-clean-1mix-0000",
        "dev-clean-2mix-0000",
    ]
    (session,) = manifest.read(exp / "01-simulate" / "test2.jsonl")
    assert (session.session_id, session.duration, session.num_speakers) == ("test-clean-2mix-0000", 1.5, 2)
    assert session.rttm_path and [(s.speaker, s.start, s.end) for s in rttm.read(session.rttm_path)] == [
        ("61", 0.0, 1.0),
        ("121", 0.5, 1.5),
    ]
    samples = np.round(audio.read(session.audio_path) * 32768)
    assert (samples[[0, 12_000, 20_000]] == [61, 61 + 121, 121]).all()
    assert {path.name for path in (exp / "02-clean" / "diar").iterdir()} == {"valid.jsonl", "test2.jsonl"}


def test_a_set_cannot_be_simulated_and_mixed(checkout: Path, tmp_path: Path) -> None:
    sets = 'train = "train", dev-clean-1mix = "train"'
    write_text(tmp_path / "recipe.toml", RECIPE.format(folder=checkout, sets=sets, hours="train = 0.1"))
    result = sortk("run", "--recipe", tmp_path, "--exp", tmp_path / "exp", "--stop-stage", 1)
    assert result.exit_code == 1 and "set train is to be made in two ways" in result.stderr


def test_by_default_every_list_is_a_set(checkout: Path, tmp_path: Path) -> None:
    result = sortk("prepare", "librispeechmix", "--corpus-dir", checkout, "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert {path.stem for path in (tmp_path / "out" / "mixtures").iterdir()} == set(PUBLISHED)
    splits = {source.utterance_id: source.split for source in sources.read(tmp_path / "out" / "sources.jsonl")}
    assert splits == {
        "84-1-0000": "valid",
        "174-1-0000": "valid",
        "61-1-0000": "test",
        "121-1-0000": "test",
        "19-1-0000": "train",
    }


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("list/test-clean-3mix.jsonl", "list/test-clean-3mix.jsonl: no such file"),
        ("data/LibriSpeech/dev-clean/84/1/84-1-0000.flac", "84-1-0000.flac is missing"),
    ],
)
def test_the_first_missing_file_is_named(checkout: Path, name: str, sentence: str) -> None:
    (checkout / name).unlink()
    with pytest.raises((ValueError, FileNotFoundError), match=sentence):
        read_mixtures(checkout)


def test_without_librispeech_it_says_where_it_belongs(checkout: Path) -> None:
    (checkout / "data").rename(checkout / "elsewhere")
    with pytest.raises(FileNotFoundError, match="data/LibriSpeech: no such folder; unpack LibriSpeech there"):
        read_mixtures(checkout)


@pytest.mark.skipif(not REFERENCE.is_dir(), reason="the shared data are not on this machine")
def test_the_official_lists_have_the_counts_of_the_table() -> None:
    for name, published in PUBLISHED.items():
        mixtures = mixlist.read(REFERENCE / f"{name}.jsonl.gz")
        hours = sum(mixture.duration for mixture in mixtures) / 3600
        assert len(mixtures) == published.sessions and hours == pytest.approx(published.hours, abs=0.005), name
