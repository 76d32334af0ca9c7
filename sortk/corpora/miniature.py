"""Miniatures of corpora: the layout, names and formats of the real ones, with a few short talks of the embedded voices.

A recipe's `debug` variant (prepare.miniature = true) runs all its stages on them, with the same readers, without the
corpora. Where a reader needs every session of a part, all exist, but they are one talk under many names. The tests of
readers build their corpora with the same writers of layouts (`write_ami_annotations`, `format_textgrid`, ...).
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from xml.sax.saxutils import escape

import numpy as np

from sortk.corpora import ami, audiomnist, callhome, dipco, espeak, icsi, librispeechmix
from sortk.corpora.espeak import EspeakOptions, EspeakSpeaker, open_synthesizer
from sortk.corpora.splits import TEST, TRAIN, VALID
from sortk.formats import audio, rttm, uem
from sortk.formats.audio import Samples
from sortk.formats.files import atomic_path, atomic_text
from sortk.records import SAMPLE_RATE, Region, RunJobs, Segment, Source

VOICES = EspeakOptions(speakers=20, utterances_per_speaker=6)  # 12 of them for training
TURNS = 11  # of a talk: about 25 s, enough for samples of 10 to 20 s
PAUSES = (0.4, -0.3, 0.2, 0.6)  # seconds before each turn, repeated; some turns overlap
SPLIT_OF_PART = {"train": TRAIN, "dev": VALID, "test": TEST}
NXT_HEADER = '<?xml version="1.0" encoding="ISO-8859-1" standalone="yes"?>\n'
NITE = 'xmlns:nite="http://nite.sourceforge.net/"'


@dataclass(frozen=True, slots=True)
class SyntheticTalk:
    """A conversation; speakers are A, B, ... in the order of arrival."""

    tracks: Samples  # (speakers, samples)
    turns: tuple[Segment, ...]  # with text; their session has no name yet
    words: tuple[Segment, ...]

    @property
    def seconds(self) -> float:
        return len(self.tracks[0]) / SAMPLE_RATE

    @property
    def speakers(self) -> str:
        return "ABCDEFGH"[: len(self.tracks)]


@dataclass(frozen=True)
class MiniatureMaker:
    """Makes talks for miniatures, from voices that are synthesized once."""

    folder: Path
    seed: int
    run_jobs: RunJobs

    @cached_property
    def voices(self) -> dict[str, list[list[Source]]]:
        """Return the utterances of each speaker, by split."""
        by_speaker: dict[str, list[Source]] = {}
        for source in espeak.prepare(VOICES, self.folder / "voices", self.seed, self.run_jobs):
            by_speaker.setdefault(source.speaker, []).append(source)
        splits: dict[str, list[list[Source]]] = {}
        for utterances in by_speaker.values():
            splits.setdefault(utterances[0].split, []).append(utterances)
        return splits

    def talk(self, split: str, n_speakers: int, first: int = 0) -> SyntheticTalk:
        """Return a conversation of speakers of a split; `first` selects the speakers and their utterances."""
        voices = self.voices[split]
        cast = [voices[(first + place) % len(voices)] for place in range(n_speakers)]
        turns, words, placed, end = [], [], [], 0.0
        for number in range(TURNS):
            who = number % n_speakers
            source = cast[who][(first + number // n_speakers) % len(cast[who])]
            start = round(max(0.0, end + PAUSES[number % len(PAUSES)]), 2)
            end = start + source.duration
            placed.append(
                (who, round(start * SAMPLE_RATE), audio.read(source.audio_path, source.offset, source.duration))
            )
            name = "ABCDEFGH"[who]
            spoken = [Segment("", name, start + word.start, start + word.end, word.text) for word in source.words]
            turns.append(Segment("", name, spoken[0].start, spoken[-1].end, source.text))
            words += spoken
        tracks = np.zeros((n_speakers, max(at + len(samples) for _, at, samples in placed)), np.float32)
        for who, at, samples in placed:
            tracks[who, at : at + len(samples)] += samples
        return SyntheticTalk(tracks, tuple(turns), tuple(words))


def write_miniature(corpus: str, folder: Path, maker: MiniatureMaker) -> None:
    """Write a miniature of the corpus into the folder."""
    if corpus not in WRITERS:
        raise ValueError(f"there is no miniature of {corpus}, only of {', '.join(WRITERS)}")
    WRITERS[corpus](folder, maker)


# ---------------------------------------------------------------------------------------------------------------------
# Files


def _write_audio(path: Path, talk: SyntheticTalk, style: str = "mix") -> None:
    """Write the mixed speakers; `call`: one per channel, `line`: mixed, both with 8 kHz as NIST SPHERE."""
    import soundfile  # noqa: PLC0415 - slow to import, and only miniatures need another format than FLAC

    if style == "mix":
        samples, rate, options = talk.tracks.sum(axis=0), SAMPLE_RATE, {}
    else:
        rows = talk.tracks if style == "call" else talk.tracks.sum(axis=0, keepdims=True)
        samples = np.stack([audio.from_array(row, SAMPLE_RATE, 8000) for row in rows], axis=1)
        rate, options = 8000, {"format": "NIST", "subtype": "PCM_16"}
    with atomic_path(path) as temporary:
        options = options or {"format": path.suffix[1:].upper()}
        soundfile.write(temporary, np.clip(samples, -1, 1), rate, **options)


def _link(original: Path, others: Iterable[Path]) -> None:
    """Give the file other names, too."""
    for path in others:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        try:
            os.link(original, path)
        except OSError:  # a file system without links
            shutil.copyfile(original, path)


def _write_text(path: Path, text: str) -> None:
    with atomic_text(path) as file:
        file.write(text)


def _write_rttm(path: Path, name: str, talk: SyntheticTalk) -> None:
    rttm.write(path, [Segment(name, turn.speaker, turn.start, turn.end) for turn in talk.turns])


# ---------------------------------------------------------------------------------------------------------------------
# Meetings


def _write_ami(folder: Path, maker: MiniatureMaker) -> None:
    words: dict[str, dict[str, list[str]]] = {}
    names: dict[str, dict[str, str]] = {}
    for part, meetings in ami.MEETINGS.items():
        talk = maker.talk(SPLIT_OF_PART[part], 4)
        paths = [ami_audio_path(folder, meeting) for meeting in meetings]
        _write_audio(paths[0], talk)
        _link(paths[0], paths[1:])
        for meeting in meetings:
            words[meeting] = {agent: _nxt_words(talk, agent) for agent in talk.speakers}
            names[meeting] = {agent: f"{part}{agent}" for agent in talk.speakers}
    write_ami_annotations(folder, words, names)


def ami_audio_path(folder: Path, meeting: str, signal: str = "Mix-Headset") -> Path:
    """Return where AMI has the audio of a meeting."""
    return folder / "amicorpus" / meeting / "audio" / f"{meeting}.{signal}.wav"


def write_ami_annotations(
    folder: Path, words: Mapping[str, Mapping[str, Iterable[str]]], names: Mapping[str, Mapping[str, str]]
) -> None:
    """Write meeting -> agent -> the XML elements of the words, and meeting -> agent -> global name."""
    annotations, listed = folder / ami.ANNOTATIONS, []
    for meeting, words_of in words.items():
        for agent, elements in words_of.items():
            write_nxt(annotations / "words" / f"{meeting}.{agent}.words.xml", elements)
        people = "".join(
            f'<speaker nite:id="{meeting}_{agent}" nxt_agent="{agent}" global_name="{name}"/>'
            for agent, name in names[meeting].items()
        )
        listed.append(f'<meeting nite:id="m_{meeting}" observation="{meeting}">{people}</meeting>')
    write_nxt(annotations / "corpusResources" / "meetings.xml", listed)


def _write_icsi(folder: Path, maker: MiniatureMaker) -> None:
    for part, meetings in icsi.MEETINGS.items():
        talk = maker.talk(SPLIT_OF_PART[part], 3, first=1)
        paths = [folder / "audio" / f"{name}.interaction.wav" for name in meetings]
        _write_audio(paths[0], talk)
        _link(paths[0], paths[1:])
        for meeting in meetings:
            for agent in talk.speakers:
                words = _nxt_words(talk, agent)
                name = f"{meeting}.{agent}"
                child = f'<nite:child href="{name}.words.xml#id(w0)..id(w{len(words) - 1})"/>'
                times = f'starttime="0" endtime="{talk.seconds}" participant="{part}{agent}"'
                write_icsi_annotations(folder, name, words, [f"<segment {times}>{child}</segment>"])


def write_icsi_annotations(folder: Path, name: str, words: Iterable[str], segments: Iterable[str]) -> None:
    """Write the XML elements of a participant, whose name is <meeting>.<agent>."""
    write_nxt(folder / "ICSI" / "Words" / f"{name}.words.xml", words)
    write_nxt(folder / "ICSI" / "Segments" / f"{name}.segs.xml", segments)


def _nxt_words(talk: SyntheticTalk, agent: str) -> list[str]:
    own = [word for word in talk.words if word.speaker == agent]
    return [
        f'<w nite:id="w{number}" starttime="{word.start:.3f}" endtime="{word.end:.3f}" c="W">{escape(word.text)}</w>'
        for number, word in enumerate(own)
    ]


def write_nxt(path: Path, elements: Iterable[str]) -> None:
    """Write a file of the NITE XML toolkit with these elements."""
    text = f"{NXT_HEADER}<nite:root {NITE}>\n" + "\n".join(elements) + "\n</nite:root>\n"
    with atomic_path(path) as temporary:
        temporary.write_bytes(text.encode("iso-8859-1"))


def _write_dipco(folder: Path, maker: MiniatureMaker) -> None:
    talk = maker.talk(TRAIN, 4, first=2)
    root = folder / "Dipco"
    for part, sessions in dipco.SESSIONS.items():
        paths = [root / "audio" / part / f"{name}_U01.CH1.wav" for name in sessions]
        _write_audio(paths[0], talk)
        _link(paths[0], paths[1:])
        for name in sessions:
            utterances = [
                {
                    "session_id": name,
                    "speaker_id": turn.speaker,
                    "words": turn.text,
                    "start_time": {"U01": f"00:00:{turn.start:05.2f}"},
                    "end_time": {"U01": f"00:00:{turn.end:05.2f}"},
                }
                for turn in talk.turns
            ]
            _write_text(root / "transcriptions" / part / f"{name}.json", json.dumps(utterances, indent=1))


def _write_aishell4(folder: Path, maker: MiniatureMaker) -> None:
    for number, (part, name) in enumerate({"train_S": "20200616_S_R001S01C01", "test": "S_R003S01C01"}.items()):
        talk = maker.talk(TRAIN if part != "test" else TEST, 4, first=3 + number)
        _write_audio(folder / part / "wav" / f"{name}.flac", talk)
        tiers = {
            speaker: [
                (round(turn.start, 3), round(turn.end, 3), turn.text) for turn in talk.turns if turn.speaker == speaker
            ]
            for speaker in talk.speakers
        }
        _write_text(folder / part / "TextGrid" / f"{name}.TextGrid", format_textgrid(tiers, talk.seconds))


def format_textgrid(tiers: Mapping[str, Sequence[tuple[float, float, str]]], seconds: float) -> str:
    """Return a TextGrid as Praat saves it: tier -> (start, end, text) of its intervals."""
    lines = ['File type = "ooTextFile"', 'Object class = "TextGrid"', "", "xmin = 0", f"xmax = {seconds}"]
    lines += ["tiers? <exists>", f"size = {len(tiers)}", "item []:"]
    for number, (name, intervals) in enumerate(tiers.items(), start=1):
        lines += [f"    item [{number}]:", '        class = "IntervalTier"', f'        name = "{name}"']
        lines += ["        xmin = 0", f"        xmax = {seconds}", f"        intervals: size = {len(intervals)}"]
        for row, (start, end, text) in enumerate(intervals, start=1):
            quoted = text.replace('"', '""')
            lines += [f"        intervals [{row}]:", f"            xmin = {start}"]
            lines += [f"            xmax = {end}", f'            text = "{quoted}"']
    return "\n".join(lines) + "\n"


def _write_voxconverse(folder: Path, maker: MiniatureMaker) -> None:
    clips = {"dev": ("audio", "abjxc"), "test": ("voxconverse_test_wav", "aepyx")}
    for part, (audio_folder, clip) in clips.items():
        talk = maker.talk(SPLIT_OF_PART[part], 3)
        _write_audio(folder / audio_folder / f"{clip}.wav", talk)
        _write_rttm(folder / part / f"{clip}.rttm", clip, talk)


def _write_dihard3(folder: Path, maker: MiniatureMaker) -> None:
    for part, split in {"dev": TRAIN, "eval": TEST}.items():
        for number, n_speakers in enumerate((2, 4, 5, 3), start=1):
            name = f"DH_{part.upper()}_{number:04d}"
            data = folder / f"third_dihard_challenge_{part}" / "data"
            talk = maker.talk(split, n_speakers, first=4 + number)
            _write_audio(data / "flac" / f"{name}.flac", talk)
            _write_rttm(data / "rttm" / f"{name}.rttm", name, talk)
            uem.write(data / "uem" / f"{name}.uem", [Region(name, 0.0, talk.seconds)])


# ---------------------------------------------------------------------------------------------------------------------
# Telephone


def _write_fisher(folder: Path, maker: MiniatureMaker) -> None:
    for number in range(1, 5):
        name, talk = f"fe_03_{number:05d}", maker.talk(TRAIN, 2, first=5 + number)
        _write_audio(folder / "fe_03_p1_sph1" / "audio" / "000" / f"{name}.sph", talk, "call")
        header = f"# {name}.sph\n# Transcribed at the LDC\n\n"
        _write_text(folder / "fe_03_p1_tran" / "data" / "trans" / "000" / f"{name}.txt", header + _ldc_turns(talk))


def _write_ch109(folder: Path, maker: MiniatureMaker) -> None:
    for number, name in enumerate(("en_4065", "en_4074")):
        talk = maker.talk(TEST, 2, first=number)
        _write_audio(folder / "LDC97S42" / "data" / "train" / f"{name}.sph", talk, "call")
        _write_text(folder / "LDC97T14" / "transcrpt" / "train" / f"{name}.txt", _ldc_turns(talk))


def _ldc_turns(talk: SyntheticTalk) -> str:
    return "".join(f"{turn.start:.2f} {turn.end:.2f} {turn.speaker}: {turn.text}\n\n" for turn in talk.turns)


def _write_callhome(folder: Path, maker: MiniatureMaker) -> None:
    reference: list[Segment] = []
    for part, names in callhome.read_parts().items():
        for n_speakers, name in zip((2, 3, 4), names, strict=False):
            talk = maker.talk(TRAIN if part == "part1" else TEST, n_speakers, first=2)
            _write_audio(folder / "r65_8_1" / "sid00sg1" / "data" / f"{name}.sph", talk, "line")
            reference += [Segment(name, turn.speaker, turn.start, turn.end) for turn in talk.turns]
    rttm.write(folder / "sre2000-key" / callhome.REFERENCE_NAME, reference)


def _write_sre(folder: Path, maker: MiniatureMaker) -> None:
    sides = {f"side{number}": maker.talk(TRAIN, 1, first=8 + number) for number in range(6)}
    for name, talk in sides.items():
        _write_audio(folder / "sides" / f"{name}.sph", talk, "line")
    _write_text(folder / "wav.scp", "".join(f"{name} sides/{name}.sph\n" for name in sides))
    _write_text(folder / "utt2spk", "".join(f"{name} speaker-of-{name}\n" for name in sides))


# ---------------------------------------------------------------------------------------------------------------------
# Digits


def _write_audiomnist(folder: Path, maker: MiniatureMaker) -> None:
    speakers = {f"{number:02d}": speaker for number, speaker in enumerate(espeak.all_speakers()[:20], start=1)}
    for _ in maker.run_jobs(partial(_speak_digits, folder / "data", maker.seed), list(speakers.items())):
        pass
    genders = {code: name for name, code in audiomnist.GENDERS.items()}
    about = {name: {"gender": genders[speaker.gender]} for name, speaker in speakers.items()}
    _write_text(folder / "data" / audiomnist.META_NAME, json.dumps(about))


def _speak_digits(folder: Path, seed: int, named: tuple[str, EspeakSpeaker]) -> None:
    import soundfile  # noqa: PLC0415

    name, speaker = named
    with open_synthesizer(speaker.voice, seed) as synthesizer:
        for digit, word in enumerate(audiomnist.DIGITS):
            speech = synthesizer.speak(f"{word}.", [0])
            samples = speech.samples.astype(np.float32)
            samples /= 4 * np.abs(samples).max()
            with atomic_path(folder / name / f"{digit}_{name}_0.wav") as temporary:
                soundfile.write(temporary, samples, speech.sample_rate, format="WAV")


# ---------------------------------------------------------------------------------------------------------------------
# Read books


def _write_subsets(folder: Path, maker: MiniatureMaker) -> dict[str, list[list[tuple[str, Source]]]]:
    """Write some speakers of three subsets; return the utterances of each speaker with their paths, by subset."""
    found: dict[str, list[list[tuple[str, Source]]]] = {}
    for number, (subset, split) in enumerate(
        {"train-clean-100": TRAIN, "dev-clean": VALID, "test-clean": TEST}.items()
    ):
        for place, utterances in enumerate(maker.voices[split][:8]):
            speaker, chapter = 1000 * (number + 1) + place, 7
            stem = f"{subset}/{speaker}/{chapter}/{speaker}-{chapter}"
            named = [(f"{stem}-{index:04d}.flac", source) for index, source in enumerate(utterances)]
            for name, source in named:
                audio.write_flac(folder / name, audio.read(source.audio_path, source.offset, source.duration))
            lines = [f"{Path(name).stem} {source.text.upper()}\n" for name, source in named]
            _write_text(folder / f"{stem}.trans.txt", "".join(lines))
            found.setdefault(subset, []).append(named)
    return found


def _write_librispeechmix(folder: Path, maker: MiniatureMaker) -> None:
    subsets = _write_subsets(folder / "data" / "LibriSpeech", maker)
    for name in librispeechmix.PUBLISHED:
        subset, _, kind = name.rpartition("-")
        lines = []
        for index in range(4):
            utterances = [of[index] for of in subsets[subset][: int(kind[0])]]
            mixture = {
                "id": f"{name}/{name}-{index:04d}",
                "mixed_wav": f"{name}/{name}-{index:04d}.wav",
                "wavs": [path.replace(".flac", ".wav") for path, _ in utterances],
                "delays": [0.5 * place for place in range(len(utterances))],
                "durations": [round(source.duration, 4) for _, source in utterances],
                "speakers": [path.split("/")[1] for path, _ in utterances],
                "texts": [source.text.upper() for _, source in utterances],
            }
            lines.append(json.dumps(mixture) + "\n")
        _write_text(folder / "list" / f"{name}.jsonl", "".join(lines))


WRITERS: dict[str, Callable[[Path, MiniatureMaker], object]] = {
    "aishell4": _write_aishell4,
    "ami": _write_ami,
    "audiomnist": _write_audiomnist,
    "callhome": _write_callhome,
    "ch109": _write_ch109,
    "dihard3": _write_dihard3,
    "dipco": _write_dipco,
    "fisher": _write_fisher,
    "icsi": _write_icsi,
    "librispeech": lambda folder, maker: _write_subsets(folder / "LibriSpeech", maker),
    "librispeechmix": _write_librispeechmix,
    "sre": _write_sre,
    "voxconverse": _write_voxconverse,
}
