"""What is fuzzed: every reader of files, with valid files to start from, and what reads them."""

from __future__ import annotations

import gzip
import io
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuzz import commands, models
from fuzz.models import FILE
from fuzz.models import write_parts as _write
from fuzz.mutate import Parts

Read = Callable[[Parts, Path], object]
"""Reads an input; the folder is for files that have to lie on a disk."""


@dataclass(frozen=True)
class Target:
    """A reader. Of all inputs it gets a share that fits its speed: a hundred times as many where one takes 0.2 ms as
    where one takes 20 ms."""

    seeds: Callable[[], list[Parts]]
    read: Read
    share: int = 30
    seeds_are_valid: bool = True  # all of them, so that they are read


def _texts(*texts: str) -> Callable[[], list[Parts]]:
    return lambda: [{FILE: text.encode()} for text in texts]


def _jsons(*values: Any) -> Callable[[], list[Parts]]:
    return _texts("\n".join(map(json.dumps, values)) + "\n")


def _of_file(read: Callable[[Path], object], name: str = FILE) -> Read:
    def read_file(parts: Parts, folder: Path) -> object:
        path = folder / name
        path.write_bytes(parts[FILE])
        return read(path)

    return read_file


def _of_lines(room: str, *more: Any) -> Read:
    """A parser of numbered lines; it needs no disk."""

    def parse(parts: Parts, folder: Path) -> object:
        from importlib import import_module

        from sortk.formats.files import decode_lines

        path = folder / FILE
        module = import_module(f"sortk.formats.{room}")
        return list(module.parse(decode_lines(io.BytesIO(parts[FILE]), path), path, *more))

    return parse


# ---------------------------------------------------------------------------------------------------------------------
# Text and JSON

SESSION = {"session_id": "s", "audio_filepath": "a.wav", "offset": 1.5, "duration": 9, "text": "x", "num_speakers": 2}
SOURCE = {"utterance_id": "u", "audio_filepath": "a.wav", "offset": 0.5, "duration": 9, "speaker": "a", "text": "x y",
          "words": [["x", 0.5, 1.5], ["y", 1.5, 2.0]], "speech_start": 0.5, "speech_end": 2.0}  # fmt: skip
ENTRY = {"session_id": "s", "speaker": "a", "start_time": "0.5", "end_time": 1.5, "words": "hello", "channel": 2}
MIXTURE = {"id": "dev-2mix/dev-2mix-0000", "wavs": ["a/b.wav", "c.wav"], "delays": [0.0, 4.5], "durations": [5.8, 10.4],
           "speakers": ["1", "2"], "texts": ["MISTER QUILTER", "YES"], "genders": ["m", "f"]}  # fmt: skip
SUPERVISION = {"id": "u", "recording_id": "r", "start": 0.5, "duration": 1, "speaker": "a", "text": "x", "channel": 0}
RECORDING = {"id": "r", "sources": [{"type": "file", "channels": [0], "source": "a.wav"}], "sampling_rate": 16000,
             "num_samples": 160000, "duration": 10.0}  # fmt: skip
KALDI = {
    "wav.scp": b"r1 /r1.flac\nr2 a b.wav\n", "segments": b"a-u1 r1 0.5 1.5\nb-u2 r2 0 2.25\n",
    "utt2spk": b"a-u1 a\nb-u2 b\n", "text": b"a-u1 hello there\nb-u2\n", "reco2dur": b"r1 10\nr2 20.5\n",
}  # fmt: skip
RTTM = (
    "SPEAKER s 1 0.5 1.25 <NA> <NA> alice <NA> <NA>\nSPEAKER s 1 1.5 2 <NA> <NA> bob <NA>\n"
    ";; x\nSPKR-INFO s 1 <NA> <NA> <NA> adult a <NA>\n"
)
UEM = "s 1 0.5 1.25\n;; comment\ns 2 0 10\n"
STM = "s 1 alice 0.5 1.25 <o,f0,male> hello you\ns 1 bob 1 2\n"
CTM = "s alice 0.5 0.25 hello 0.9\ns 1 1 2 you NA lex bob\n"
TEXTGRID = """File type = "ooTextFile"
Object class = "TextGrid"

xmin = 0
xmax = 2.5
tiers? <exists>
size = 2
item []:
    item [1]:
        class = "IntervalTier"
        name = "alice"
        xmin = 0
        xmax = 2.5
        intervals: size = 2
        intervals [1]:
            xmin = 0
            xmax = 1.5
            text = "shall ""we"" start"
        intervals [2]:
            xmin = 1.5
            xmax = 2.5
            text = ""
    item [2]:
        class = "TextTier"
        name = "marks"
        xmin = 0
        xmax = 2.5
        points: size = 1
        points [1]:
            number = 1
            mark = "x"
"""
CHAT = (
    "@Begin\n@Media:\t4065, audio\n*A:\twell &-uh I met <him> [//] her (.) in Boston .  \x15545250_548020\x15\n"
    "*B:\t&=laughs xxx yeah\n\tgoes on (be)cause !  \x15547430_549360\x15\n%com:\ta remark\n@End\n"
)
LDC = (
    "# fe_03_00001.sph\n3.76 5.54 A: and i generally prefer [laughter] [[x]]\n\n"
    "5.40 9.21 B1: %um, I met ((somebody)) in &Boston {breath} <as> x </as>\nlast week.\n"
)
NXT = (
    '<?xml version="1.0" encoding="ISO-8859-1"?>\n'
    '<nite:root nite:id="x" xmlns:nite="http://nite.sourceforge.net/">\n'
    '  <w nite:id="x0" starttime="77.44" endtime="77.74">L_C_D_</w>\n'
    '  <w nite:id="x1" starttime="77.74" endtime="77.74" punc="true">.</w>\n'
    '  <w nite:id="x2" starttime="78">two</w><w nite:id="x3">hour</w><w nite:id="x4" endtime="79">long</w>\n'
    '  <vocalsound nite:id="x5" starttime="79.1" endtime="79.6" type="laugh"/>\n</nite:root>\n'
)
LAUGHS = (
    '<?xml version="1.0"?><!DOCTYPE r [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">'
    '<!ENTITY c "&b;&b;&b;&b;&b;&b;&b;&b;">]><r><w starttime="1" endtime="2">&c;</w></r>'
)
SST = {"session_id": "s", "text": "<spk0> well i <spk1> yes <cs> no"}
POSTPROCESS = "onset = 0.53\noffset = 0.49\npad_onset = 0.23\nmin_duration_on = 0.42\n\n[notes]\nder = 0.1\nwhy = 'x'\n"
RECIPE = """summary = "four speakers"
seed = 3
asr = true

[prepare]
corpora_dir = "/data"
corpora = [{ corpus = "ami", corpus_dir = "x" }]

[simulate]
overlap = 0.12
hours = { train = 2.0, valid = 0.1 }

[train_diar]
size = "tiny"
n_speakers = 4

[[train_diar.phases]]
name = "one"
speeds = [0.9, 1.0]
loop = { steps = 10, learning_rate = 1e-3, accumulate = 2, freeze = ["encoder"] }

[train_asr]
size = "tiny"

[cluster]
hours = 2.5
sbatch = ["--constraint=a100"]
train_diar = { gpus = 8, nodes = 2 }

[variants.dense.simulate]
overlap = 0.25

[variants.pil.train_diar]
alpha = 0.0
phases.0.loop.steps = 5
"""
CLUSTER = """hours = 2.5
partition = "gpu"
sbatch = ["--constraint=a100", "--mail-type=END"]
train_diar = { gpus = 8, nodes = 2 }
"""


def _spoken_words(room: str, seed: str) -> Target:
    """A transcript of a corpus: turns, and then their words."""

    def read(parts: Parts, folder: Path) -> object:
        from importlib import import_module

        module = import_module(f"sortk.formats.{room}")
        return [module.spoken_words(turn.text) for turn in _of_lines(room, "s")(parts, folder)]  # type: ignore[attr-defined]

    return Target(_texts(seed), read)


def _read_textgrid(path: Path) -> object:
    from sortk.formats import textgrid

    return textgrid.read(path)


def _read_nxt(path: Path) -> object:
    from sortk.formats import nxt

    words, _ = nxt.find_words(nxt.read_tokens(path))
    return list(nxt.join_words(nxt.as_segments("s", "a", words)))


def _read_kaldi(parts: Parts, folder: Path) -> object:
    from sortk.formats import kaldi

    _write(parts, folder)
    return kaldi.read(folder)


def _read_lhotse(parts: Parts, folder: Path) -> object:
    from sortk.formats import lhotse

    for name, data in parts.items():
        (folder / name).write_bytes(gzip.compress(data, compresslevel=1))
    return lhotse.read(folder)


def _read_packed(parts: Parts, folder: Path) -> object:
    """A .gz whose own bytes are damaged."""
    from sortk.formats.files import read_lines

    path = folder / "packed.gz"
    path.write_bytes(parts[FILE])
    return sum(len(line) for _, line in read_lines(path))


def _validate(path: Path) -> object:
    from sortk.formats.convert import validate

    return validate(path)


def _read_sst(path: Path) -> object:
    from sortk.scoring.wer import Transcripts

    return Transcripts.read(path)


def _read_recipe(path: Path) -> object:
    from sortk.recipe import load_recipe, load_shareable

    load_recipe(str(path))
    load_shareable(str(path), ("simulate.overlap=0.3",), "dense+pil")
    return load_recipe(str(path), ("train_diar.phases.0.loop.steps=3",), "dense+pil")


def _read_cluster(parts: Parts, folder: Path) -> object:
    """The user's own defaults for jobs."""
    from sortk.recipe import read_cluster_defaults

    path = folder / "sortk" / "cluster.toml"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(parts[FILE])
    with commands.environment(XDG_CONFIG_HOME=str(folder)):
        return read_cluster_defaults()


def _read_override(parts: Parts, folder: Path) -> object:
    from sortk.recipe import load_recipe

    path = folder / "recipe.toml"
    if not path.exists():
        path.write_text(RECIPE, encoding="utf-8")
    return load_recipe(str(path), (parts[FILE].decode("utf-8", "replace"),))


def _read_postprocess(path: Path) -> object:
    from sortk.formats.postprocess import read_postprocess

    return read_postprocess(path)


# ---------------------------------------------------------------------------------------------------------------------
# Audio and arrays


def _audio_seeds(kind: str, subtypes: tuple[str, ...], rate: int = 16000) -> Callable[[], list[Parts]]:
    def make() -> list[Parts]:
        import numpy as np
        import soundfile

        samples = np.sin(np.arange(1200) / 7).astype(np.float32).reshape(-1, 2) * 0.5
        found = []
        for subtype in subtypes:
            for channels in (samples, samples[:, 0]):
                file = io.BytesIO()
                soundfile.write(file, channels, rate, format=kind, subtype=subtype)
                found.append({FILE: file.getvalue()})
        return found

    return make


def _other_audio_seeds() -> list[Parts]:
    kinds = (("RF64", "PCM_16"), ("W64", "PCM_24"), ("AIFF", "PCM_16"), ("AU", "FLOAT"), ("CAF", "PCM_16"))
    found = [parts for kind, subtype in kinds for parts in _audio_seeds(kind, (subtype,))()]
    return found + _audio_seeds("MP3", ("MPEG_LAYER_III",))()


def _read_audio(path: Path) -> object:
    from sortk.formats import audio

    header = audio.info(path)
    heard = audio.read(path, offset=min(0.01, header.seconds / 2), duration=0.02)
    if header.seconds < 60:
        audio.read(path, sample_rate=8000)
        sum(len(block) for block in audio.read_blocks(path))
    return heard


def _sphere_seeds() -> list[Parts]:
    head = "NIST_1A\n   1024\nchannel_count -i 2\nsample_count -i 300\nsample_rate -i 8000\nsample_n_bytes -i 1\n"
    tails = ("sample_byte_format -s1 1\nsample_coding -s4 ulaw\n", "sample_coding -s26 ulaw,embedded-shorten-v2.00\n")
    return [{FILE: f"{head}{tail}end_head\n".encode().ljust(1024) + b"\xff\x7f" * 300} for tail in tails]


def _array_seeds() -> list[Parts]:
    import numpy as np

    found = []
    for kind in (np.float16, np.float32):
        file = io.BytesIO()
        np.save(file, np.full((20, 4), 0.25, kind))
        found.append({FILE: file.getvalue()})
    return found


def _read_posteriors(path: Path) -> object:
    from sortk.formats import posteriors

    return posteriors.read(path)


# ---------------------------------------------------------------------------------------------------------------------
# Manifests that name what they should not

PLACES = ("/dev/zero", "/dev/urandom", "/dev/full", "/dev/null", "/dev/stdin", "/proc/self/mem", "/proc/self/environ",
          "fifo", "folder", "loop", "hanging", "self.jsonl", "", ".", "..", "/", "../" * 60 + "etc/passwd", "a" * 300,
          "a/" * 3000, "x\ny", "x\x7f\u2028", "a.wav/b", "a.rttm", "a.wav", "~", "$HOME",
          "-")  # fmt: skip


def _make_places(folder: Path) -> None:
    import numpy as np
    import soundfile

    if (folder / "fifo").exists():
        return
    os.mkfifo(folder / "fifo")
    (folder / "folder").mkdir()
    (folder / "loop").symlink_to("loop")
    (folder / "hanging").symlink_to("nowhere")
    (folder / "a.rttm").write_text(RTTM, encoding="utf-8")
    soundfile.write(folder / "a.wav", np.zeros(160_000), 16_000)


def _place_seeds() -> list[Parts]:
    keys = ("audio_filepath", "rttm_filepath", "uem_filepath", "ctm_filepath", "seglst_filepath")
    plain = {"session_id": "s", "audio_filepath": "a.wav", "rttm_filepath": "a.rttm"}
    return [{FILE: json.dumps(plain | {key: place}).encode()} for key in keys for place in PLACES]


def _read_places(parts: Parts, folder: Path) -> object:
    """Everything that follows the names in a manifest."""
    from sortk.corpora import own_sessions
    from sortk.formats.convert import convert, validate
    from sortk.inference.diarize import find_sessions

    _make_places(folder)
    path = folder / "self.jsonl"
    path.write_bytes(parts[FILE])
    errors = []
    for work in (
        lambda: validate(path),
        lambda: convert(path, folder / "out.rttm", "rttm"),
        lambda: convert(path, folder / "out", "kaldi"),
        lambda: own_sessions.read(path, map, 0.0, 0.0, 0),
        lambda: find_sessions([path]),
    ):
        try:
            work()
        except (ValueError, OSError) as error:
            errors.append(error)
    if errors:
        raise errors[-1]
    return None


TARGETS: Mapping[str, Target] = {
    "rttm": Target(_texts(RTTM), _of_lines("rttm"), 250),
    "uem": Target(_texts(UEM), _of_lines("uem"), 250),
    "stm": Target(_texts(STM), _of_lines("stm"), 250),
    "ctm": Target(_texts(CTM), _of_lines("ctm"), 250),
    "seglst": Target(_texts(json.dumps([ENTRY, ENTRY | {"start_time": 0.25}])), _of_lines("seglst"), 250),
    "manifest": Target(_jsons(SESSION, SESSION | {"session_id": "t", "x": [1]}), _of_lines("manifest"), 250),
    "sources": Target(_jsons(SOURCE, SOURCE | {"utterance_id": "v"}), _of_lines("sources"), 250),
    "mixlist": Target(_jsons(MIXTURE), _of_lines("mixlist"), 250),
    "kaldi": Target(lambda: [KALDI], _read_kaldi),
    "lhotse": Target(
        lambda: [{"supervisions.jsonl.gz": json.dumps(SUPERVISION).encode(),
                  "recordings.jsonl.gz": json.dumps(RECORDING).encode()}], _read_lhotse),
    "gzip": Target(lambda: [{FILE: gzip.compress(RTTM.encode() * 3)}], _read_packed),
    "textgrid": Target(_texts(TEXTGRID), _of_file(_read_textgrid), 100),
    "chat": _spoken_words("chat", CHAT),
    "ldc": _spoken_words("ldc", LDC),
    "nxt xml": Target(_texts(NXT, LAUGHS), _of_file(_read_nxt), 100),
    "sst": Target(_jsons(SST, SST | {"session_id": "t"}), _of_file(_read_sst, "sst.jsonl")),
    "postprocess": Target(_texts(POSTPROCESS), _of_file(_read_postprocess)),
    "recipe": Target(_texts(RECIPE), _of_file(_read_recipe, "recipe.toml"), 6),
    "cluster": Target(_texts(CLUSTER), _read_cluster, 10),
    "set option": Target(_texts("simulate.overlap=0.3", "simulate.hours.train=2", "train_diar.phases.0.loop.steps=3",
                           'train_diar.phases=[{name = "x"}]'), _read_override, 6),
    "validate": Target(_texts(RTTM, UEM, STM, CTM, json.dumps([ENTRY]), json.dumps(SESSION), json.dumps(SOURCE),
                              json.dumps(MIXTURE), json.dumps(SST), json.dumps(SUPERVISION)), _of_file(_validate),
                       seeds_are_valid=False),
    "named files": Target(_place_seeds, _read_places, 2, seeds_are_valid=False),
    "wav": Target(_audio_seeds("WAV", ("PCM_16", "PCM_24", "FLOAT", "ULAW", "IMA_ADPCM")), _of_file(_read_audio), 6),
    "flac": Target(_audio_seeds("FLAC", ("PCM_16",), 8000), _of_file(_read_audio), 6),
    "ogg": Target(_audio_seeds("OGG", ("VORBIS", "OPUS")), _of_file(_read_audio), 6),
    "other audio": Target(_other_audio_seeds, _of_file(_read_audio), 6),
    "sphere": Target(_sphere_seeds, _of_file(_read_audio, "a.sph"), 6, seeds_are_valid=False),
    "posteriors": Target(_array_seeds, _of_file(_read_posteriors, "a.npy"), 30),
    "model folder": Target(models.folder_seeds, models.read_folder, 2),
    "hugging face": Target(models.huggingface_seeds, models.read_folder, 2),
    "hf parakeet": Target(models.huggingface_asr_seeds, models.read_asr_folder, 1),
    "tokenizer": Target(models.tokenizer_seeds, models.read_tokenizer, 10),
    "nemo archive": Target(models.archive_seeds, _of_file(models.read_archive, "a.nemo"), 2),
    "nemo members": Target(models.member_seeds, models.read_members, 1),
    "nemotron": Target(models.nemotron_seeds, models.read_diarizer_parts, 1),
    "asr archives": Target(models.asr_seeds, models.read_asr_parts, 1),
    "hub cache": Target(commands.cache_seeds, commands.find_by_name, 10),
    "markers": Target(commands.marker_seeds, commands.inspect_markers, 10),
    "resume files": Target(commands.resume_seeds, commands.resume, 10),
    "checkpoint": Target(models.checkpoint_seeds, models.resume_training, 2),
    "journal": Target(commands.journal_seeds, commands.open_journal, 2),
    "speakers": Target(commands.speaker_seeds, commands.compare_speakers, 1),
    "words": Target(commands.word_seeds, commands.compare_words, 1),
    "report": Target(commands.experiment_seeds, commands.report_experiment, 1),
}  # fmt: skip
