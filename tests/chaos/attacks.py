"""Hostile files, folders and settings: each kind with random values, against whole commands.

An attack holds if nothing of the user's is lost or written elsewhere, no code of the input runs, memory and time stay
bounded, the result is right or there is none, and an error is one sentence. A class of attacks is one row of the page.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import resource
import shutil
import signal
import stat
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import soundfile
from runs import Operations, Run, start, wait_unwatched

FIXTURES = Path(__file__).parents[1] / "fixtures"
DIARIZER, ASR = FIXTURES / "nemo" / "tiny_sortformer.nemo", FIXTURES / "nemo2" / "tiny_tdt_ctc.nemo"
SHIPPED = Path(__file__).parents[2] / "sortk" / "data" / "diarizer"
RATE = 16_000
MAX_CPU_SECONDS, MAX_MEGABYTES = 20.0, 1000  # of a hostile file
MINE = "by hand\n"
ESPEAK = ("prepare", "espeak", "--set", "espeak.speakers=6", "--set", "espeak.utterances_per_speaker=1")


@dataclass
class Count:
    """What came of a class of attacks."""

    tried: int = 0
    problems: list[str] = field(default_factory=list)


class Range:
    """A folder for one attack, and commands that are run in it."""

    def __init__(self, folder: Path, rng: Random, may_mount: bool) -> None:
        self.folder, self.rng, self.may_mount = folder, rng, may_mount
        self.count = Count()
        self._own: dict[Path, bytes] = {}
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()

    def path(self, name: str) -> Path:
        return self.folder / "work" / name

    def write(self, name: str, content: str | bytes) -> Path:
        path = self.path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def own(self, name: str) -> Path:
        """A file of the user's, which must stay as it is."""
        return self.keep(self.write(name, MINE))

    def keep(self, path: Path) -> Path:
        self._own[path] = path.read_bytes()
        return path

    def forget(self) -> None:
        """From here on files that were the user's own may be moved."""
        self._own = {}

    def sound(self, name: str, seconds: float = 3.0, **options: Any) -> Path:
        path = self.path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(path, self.samples(seconds), RATE, **options)
        return path

    def samples(self, seconds: float) -> np.ndarray:
        random = np.random.default_rng(self.rng.randrange(2**32))
        return 0.1 * random.standard_normal(int(seconds * RATE))

    def run(self, *arguments: Any, prelude: Callable[[], None] | None = None, source: Path | None = None) -> Run:
        """Run a command to its end. Whatever it was given, it must end with a sentence, and leave the user's files."""
        self.path("").mkdir(exist_ok=True)
        messages, output = self.folder / "messages", self.folder / "output"
        command = [str(argument) for argument in arguments]
        run = start(command, self.path(""), messages, prelude, output, source)
        wait_unwatched(run)
        self.count.tried += 1
        told = run.told()
        shown = " ".join(command)[:200]
        if run.code not in (0, 1) or "Traceback" in told or "bug of sortk" in told:
            self.object(f"{shown}: exit code {run.code}, {told[-300:]!r}")
        if run.code == 1 and "sortk: " not in told:
            self.object(f"{shown}: no sentence, {told[-300:]!r}")
        for path, content in self._own.items():
            if not path.is_file() or path.read_bytes() != content:
                self.object(f"{shown}: {path.name} is not as it was")
        return run

    def refuse(self, *arguments: Any, saying: str = "", **options: Any) -> Run:
        """Run a command that must fail."""
        run = self.run(*arguments, **options)
        if run.code != 1 or saying not in run.told():
            self.object(f"{' '.join(map(str, arguments))[:200]}: exit code {run.code}, {run.told()[-300:]!r}")
        return run

    def accept(self, *arguments: Any, **options: Any) -> Run:
        """Run a command that must work."""
        run = self.run(*arguments, **options)
        if run.code != 0:
            self.object(f"{' '.join(map(str, arguments))[:200]}: exit code {run.code}, {run.told()[-300:]!r}")
        return run

    def expect(self, holds: object, what: str) -> None:
        if not holds:
            self.object(what)

    def object(self, what: str) -> None:
        self.count.problems.append(what)


Attack = Callable[[Range], None]
ATTACKS: dict[str, Attack] = {}


def attack(title: str) -> Callable[[Attack], Attack]:
    def add(function: Attack) -> Attack:
        ATTACKS[title] = function
        return function

    return add


# ---------------------------------------------------------------------------------------------------------------------
# Outputs


def _rttm(range_: Range, name: str = "a.rttm", session: str = "s") -> Path:
    end = range_.rng.randint(2, 9)
    return range_.write(name, f"SPEAKER {session} 1 0 {end} <NA> <NA> a <NA> <NA>\n")


def _writers(range_: Range) -> list[tuple[Any, ...]]:
    """Commands whose last argument is the file to write."""
    ref = _rttm(range_)
    words = json.dumps([{"session_id": "s", "speaker": "x", "start_time": 0.0, "end_time": 1.0, "words": "so"}])
    return [
        ("score", "der", "--ref", ref, "--hyp", ref, "--json"),
        ("convert", "--to", range_.rng.choice(("stm", "seglst", "rttm")), ref),
        ("report", "--ref", ref, "--hyp", ref, "--out"),
        ("sst", "--seglst", range_.write("w.json", words), "--out"),
    ]


@attack("output is a device, a pipe or a link")
def write_into_devices(range_: Range) -> None:
    for command in _writers(range_):
        pipe, link = range_.path("pipe"), range_.path("link")
        os.mkfifo(pipe)
        reader = subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE)
        range_.accept(*command, pipe)
        try:
            received, _ = reader.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            reader.kill()
            received = b""
        range_.expect(stat.S_ISFIFO(pipe.stat().st_mode) and received, f"{command[0]}: nothing came through the pipe")
        link.symlink_to("target")
        range_.accept(*command, link)
        range_.expect(link.is_symlink() and range_.path("target").stat().st_size, f"{command[0]}: the link is replaced")
        run = range_.accept(*command, "/dev/stdout")
        range_.expect(run.written(), f"{command[0]}: nothing on /dev/stdout")
        range_.refuse(*command, "/dev/full", saying="No space left on device")
        if os.geteuid() == 0:
            null = range_.path("null")
            os.mknod(null, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
            range_.accept(*command, null)
            range_.expect(stat.S_ISCHR(null.stat().st_mode), f"{command[0]}: the device is replaced")
            null.unlink()
        for path in (pipe, link, range_.path("target")):
            path.unlink()


@attack("session ids that lead elsewhere")
def lead_elsewhere(range_: Range) -> None:
    rng, victim = range_.rng, range_.folder / "victim"
    victim.mkdir()
    for suffix in ("rttm", "json", "uem", "npy", "flac", "srt", "html"):
        (victim / f"mine.{suffix}").write_text(MINE)
        range_.keep(victim / f"mine.{suffix}")
    up = "../" * rng.randint(1, 5)
    for evil in (
        f"{up}victim/mine",
        str(victim / "mine"),
        f"x/{up}../victim/mine",
        rng.choice(("..", ".", ".x", "a/b")),
    ):
        lines, kaldi = [], {"wav.scp": "", "segments": "", "utt2spk": "", "text": ""}
        for number in range(6):
            session = evil if number == 0 else f"s{number}"
            sound = range_.sound(f"{number}.wav", 1.0)
            annotation = f"SPEAKER {session} 1 0 1 <NA> <NA> a <NA> <NA>\n"
            word = {"session_id": session, "speaker": "a", "start_time": 0.0, "end_time": 1.0, "words": "yes"}
            range_.write(f"{number}.rttm", annotation)
            range_.write(f"{number}.json", json.dumps([word]))
            named = {"rttm_filepath": f"{number}.rttm", "seglst_filepath": f"{number}.json"}
            lines.append({"session_id": session, "audio_filepath": sound.name, "duration": 1.0} | named)
            kaldi["wav.scp"] += f"{session} {sound}\n"
            kaldi["segments"] += f"a-{number} {session} 0 1\n"
            kaldi["utt2spk"] += f"a-{number} a\n"
            kaldi["text"] += f"a-{number} yes\n"
        manifest = range_.write("evil.jsonl", "\n".join(map(json.dumps, lines)) + "\n")
        for name, table in kaldi.items():
            range_.write(f"kaldi/{name}", table)
        for source in (manifest, range_.path("kaldi")):
            range_.refuse("prepare", "sessions", "--corpus-dir", source, "--out", "data")
        range_.refuse("convert", "kaldi", "out/m.jsonl", "--to", "manifest")
        range_.refuse("clean", "--manifest", manifest, "--sad", "none", "--out", "cleaned")
        range_.refuse("timestamps", "--seglst", "0.json", "--out", "timed")
        range_.refuse("diarize", manifest, "--model", DIARIZER, "--out-dir", "hyp", "--probs")
        range_.expect(len([*victim.iterdir()]) == 7, f"{evil!r}: there is a new file in another folder")
        for path in range_.path("").iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()


@attack("files and folders of the user's own in the way")
def step_on_files(range_: Range) -> None:
    for suffix in ("partial", "replaced"):
        range_.own(f"data.{suffix}/monday.rttm")
        range_.refuse(*ESPEAK, "--out", "data", saying="was not made by sortk")
        range_.refuse(*ESPEAK, "--out", "data", "--force", saying="was not made by sortk")
        shutil.move(range_.path(f"data.{suffix}"), range_.path(f"kept-{suffix}"))
        range_.forget()
    range_.own("site/index.html")
    range_.write("site/done.json", json.dumps({"key": range_.rng.random()}))
    range_.refuse(*ESPEAK, "--out", "site", "--force", saying="was not made by sortk")
    sound = range_.sound("talk/monday.wav")
    for suffix in ("rttm", "json", "srt", "npy", "svg", "html", "txt"):
        range_.own(f"talk/monday.{suffix}")
    range_.refuse("diarize", sound, "--model", DIARIZER, "--out-dir", "talk", "--probs", "--plot", "--html")
    for kind in ("txt", "json", "srt", "rttm"):
        range_.refuse(
            "transcribe", sound, "--model", ASR, "--diarizer", DIARIZER, "--out-dir", "talk", "--format", kind
        )
    range_.write("kaldi/wav.scp", f"m {sound}\n")
    range_.write("kaldi/segments", "a-1 m 0 1\n")
    range_.write("kaldi/utt2spk", "a-1 a\n")
    range_.write("kaldi/text", "a-1 yes\n")
    range_.own("rttm/m.rttm")
    range_.own("tables/text")
    range_.own("lists/supervisions.jsonl.gz")
    range_.refuse("convert", "kaldi", "m.jsonl", "--to", "manifest", saying="--force")
    range_.refuse("convert", "kaldi", "tables", "--to", "kaldi", saying="--force")
    range_.refuse("convert", "kaldi", "lists", "--to", "lhotse", saying="--force")
    range_.refuse(
        "convert", range_.own("own.stm"), range_.path("own.stm"), "--to", "rttm", saying="give another file to write"
    )
    range_.own(".model.importing/notes.txt")
    range_.refuse("import-nemo", DIARIZER, "--out", "model")


@attack("locks that are something else")
def plant_locks(range_: Range) -> None:
    thesis, lock = range_.own("thesis.tex"), range_.path("out/.data.lock")
    lock.parent.mkdir()
    plants: list[Callable[[], object]] = [
        lambda: lock.symlink_to(thesis),
        lambda: lock.symlink_to(range_.path("new")),
        lambda: lock.hardlink_to(thesis),
        lambda: os.mkfifo(lock),
        lock.mkdir,
        lambda: range_.own("out/.data.lock"),
    ]
    for plant in plants:
        plant()
        range_.refuse(*ESPEAK, "--out", "out/data", saying="should be a lock")
        range_.expect(not range_.path("new").exists(), "a lock was made where a link leads")
        lock.rmdir() if lock.is_dir() else lock.unlink()
        range_.forget()
        range_.keep(thesis)
    range_.accept(*ESPEAK, "--out", "out/data")


@attack("output is a link to another disk, or a mount point")
def redirect_folders(range_: Range) -> None:
    big, link = range_.path("big"), range_.path("data")
    big.mkdir(parents=True)
    link.symlink_to(big / "data")
    for more in ((), (), ("--force",)):
        range_.accept(*ESPEAK, "--out", "data", *more)
        range_.expect(
            link.is_symlink() and (big / "data" / "done.json").exists(), "the work is not where the link leads"
        )
    range_.path("dead").symlink_to(range_.path("nowhere/data"))
    range_.refuse(*ESPEAK, "--out", "dead", saying="is a link to")
    range_.path("model").symlink_to(big / "model")
    range_.accept("import-nemo", DIARIZER, "--out", "model")
    range_.expect((big / "model" / "config.json").exists(), "the model is not where the link leads")
    if range_.may_mount:
        place = range_.path("mounted")
        place.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", place], check=True)
        try:
            range_.refuse(*ESPEAK, "--out", "mounted", saying="is a mount point")
            range_.accept(*ESPEAK, "--out", "mounted/data")
        finally:
            subprocess.run(["umount", place], check=True)


# ---------------------------------------------------------------------------------------------------------------------
# Foreign code and settings


@attack("settings of a recipe that are commands or paths")
def poison_recipes(range_: Range) -> None:
    mark = range_.path("MARK")
    breaks = range_.rng.sample(["\\n", "\\r", "\\u000b", "\\u001b", "\\u0000", "\\u0085", "\\u2028"], 4)
    tables = [f'partition = "x{end}touch {mark}{end}#"' for end in breaks]
    tables += [f'sbatch = ["--comment=x{end}touch {mark}{end}#"]' for end in breaks]
    up = "../" * range_.rng.randint(1, 6)
    recipes = [f"{head}\n{table}\n" for table in tables for head in ("[cluster]", "[cluster.simulate]")]
    recipes += [f'name = "{name}"\n' for name in (f"{up}x", "/tmp/x", "..", ".x", "a\\u0000b")]
    recipes += [f'[simulate.{kind}]\n"{up}x" = 1\n' for kind in ("hours", "mixtures")]
    recipes += [
        f'[[train_diar.phases]]\nname = "{up}x"\n',
        f'[[prepare.corpora]]\ncorpus = "ami"\nsets = {{ dev = "{up}x" }}\n',
    ]
    for text in recipes:
        range_.write("evil.toml", text)
        range_.refuse("stage", 0, "--recipe", "evil.toml", "--cluster", "slurm")
    range_.expect(not mark.exists(), "a setting was run as a command")
    left = {path.name for path in range_.path("").iterdir()} - {"evil.toml"}
    range_.expect(not left, f"written: {left}")


@attack("modules in the current folder")
def plant_modules(range_: Range) -> None:
    planted = 'import os\nopen(os.environ["MARK"], "a").close()\nraise SystemExit(1)\n'
    for name in ("signal.py", "numpy.py", "sortk.py", "torch.py", "random.py", "json.py"):
        range_.write(name, planted)
    for name in ("a", "b"):
        word = {"session_id": name, "speaker": "x", "start_time": 0.0, "end_time": 1.0, "words": "so here we go"}
        range_.write(f"words/{name}.json", json.dumps([word]))
    range_.write("run", "if __name__ == '__main__':\n    from sortk.cli import main\n    main()\n")
    shutil.move(range_.path("run"), range_.folder / "sortk")
    environment = {**os.environ, "MARK": str(range_.folder / "MARK")}
    environment.pop("PYTHONSAFEPATH", None)
    command = [sys.executable, range_.folder / "sortk", "timestamps", "--seglst", "words", "--out", "out", "--nj", "2"]
    done = subprocess.run(command, cwd=range_.path(""), env=environment, check=False, capture_output=True, text=True)
    range_.count.tried += 1
    range_.expect(not (range_.folder / "MARK").exists(), "a module of the current folder was imported")
    range_.expect(range_.path("out/a.json").exists(), f"nothing was made: {done.stderr[-300:]!r}")
    range_.path("sortk.py").unlink()  # `python -m sortk` runs it, whatever sortk does
    command = [sys.executable, "-m", "sortk", "validate", "words"]
    done = subprocess.run(command, cwd=range_.path(""), env=environment, check=False, capture_output=True, text=True)
    range_.count.tried += 1
    range_.expect(not (range_.folder / "MARK").exists(), "python -m sortk imported a module of the current folder")
    range_.expect(done.returncode == 0, f"python -m sortk: {done.stderr[-300:]!r}")


@attack("passwords of a database")
def give_passwords(range_: Range) -> None:
    secret = f"S{range_.rng.randrange(10**9)}"
    url = f"tune.storage=postgresql://bob:{secret}@host/db"
    for command in (("config",), ("status", "--exp", "exp")):
        run = range_.accept(*command, "--recipe", "mini", "--set", url)
        range_.expect(secret not in run.written() + run.told(), f"{command[0]} shows the password")


@attack("escape sequences in ids, names and words")
def send_escapes(range_: Range) -> None:
    rng = range_.rng
    for _ in range(6):
        evil = rng.choice(("\x1b[31mX", "\x1b]0;x\x07", "a\x9b2J", "b\x07", "\x1bPq\x1b\\", "c\x08\x08"))
        ref = range_.write("a.rttm", f"SPEAKER {rng.choice((evil, 's'))} 1 0 5 <NA> <NA> {evil} <NA> <NA>\n")
        stm = range_.write("a.stm", f"s 1 {rng.choice((evil, 'a'))} 0 5 so{evil} yes\n")
        manifest = range_.write("a.jsonl", json.dumps({"session_id": evil, "audio_filepath": f"{evil}.wav"}) + "\n")
        range_.write("evil.toml", f'"{evil.encode().hex()}\\u001b[31m" = 1\n')
        folder = range_.write(f"folder/{evil}.wav", b"no sound").parent
        for command in (
            ("score", "der", "--ref", ref, "--hyp", ref),
            ("score", "compare", "--metric", "der", "--ref", ref, "--hyp", ref, "--hyp", stm),
            ("score", "cpwer", "--ref", stm, "--hyp", stm),
            ("report", "--ref", ref, "--hyp", ref, "--out", "page.html"),
            ("convert", stm, "a.json", "--to", "seglst"),
            ("validate", ref, stm, manifest, folder),
            ("diarize", manifest, folder, "--model", DIARIZER),
            ("prepare", "sessions", "--corpus-dir", manifest, "--out", "data"),
            ("diarize", f"{evil}.wav", "--model", evil),
            ("config", "--recipe", "evil.toml"),
            ("status", "--recipe", "mini", "--set", f"{evil}=1"),
        ):
            run = range_.run(*command)
            shown = run.written() + run.told()
            bad = {letter for letter in shown if ord(letter) < 32 or 127 <= ord(letter) < 160} - {"\n", "\t", "\r"}
            range_.expect(not bad, f"{' '.join(map(str, command))[:100]!r} sends {bad} to the terminal")
        shutil.rmtree(folder)


# ---------------------------------------------------------------------------------------------------------------------
# Recordings, annotations, sets


@attack("damaged or misleading recordings")
def damage_recordings(range_: Range) -> None:
    rng = range_.rng
    for kind in ("WAV", "FLAC", "OGG", "MP3", "AIFF", "AU"):
        name = f"a.{kind.lower()}"
        content = range_.sound(name, 4.0, format=kind).read_bytes()
        range_.write(name, content[: int(len(content) * rng.uniform(0.3, 0.9))])
        range_.refuse("diarize", name, "--model", DIARIZER, saying=name)
        if kind in ("WAV", "FLAC", "OGG", "MP3"):
            range_.write(name, content * rng.randint(2, 3))
            range_.refuse("diarize", name, "--model", DIARIZER, saying="several recordings")
    content = range_.sound("b.wav", 4.0).read_bytes()
    range_.write("b.wav", content[:40] + rng.randrange(2, 20_000, 2).to_bytes(4, "little") + content[44:])
    range_.refuse("diarize", "b.wav", "--model", DIARIZER, saying="header is wrong")
    loud = range_.samples(3.0) * 10 ** rng.uniform(3, 30)
    soundfile.write(range_.path("loud.wav"), loud, RATE, subtype="DOUBLE")
    range_.refuse("diarize", "loud.wav", "--model", DIARIZER, saying="between -1 and 1")
    samples = range_.samples(3.0)
    samples[rng.randrange(len(samples))] = np.nan
    soundfile.write(range_.path("nan.wav"), samples, RATE, subtype="FLOAT")
    range_.refuse("diarize", "nan.wav", "--model", DIARIZER, saying="not finite")
    one = range_.samples(3.0)
    soundfile.write(range_.path("one.wav"), one, RATE)
    soundfile.write(range_.path("anti.wav"), np.stack([one, -rng.uniform(0.99, 1.0) * one], axis=1), RATE)
    expected, found = (
        range_.accept("diarize", name, "--model", DIARIZER).written() for name in ("one.wav", "anti.wav")
    )
    range_.expect(found.replace(" anti ", " one ") == expected, "channels that cancel each other are heard as silence")
    for kind in ("FLAC", "OGG", "MP3"):
        sound = range_.sound(f"piped.{kind.lower()}", format=kind)
        range_.refuse("diarize", "-", "--model", DIARIZER, source=sound)


@attack("windows of one recording in several sets")
def leak_windows(range_: Range) -> None:
    lines = []
    n_recordings = range_.rng.randint(4, 7)
    for number in range(n_recordings):
        sound = range_.sound(f"{number}.wav", 6.0)
        _rttm(range_, f"{number}.rttm", str(number))
        for start_seconds in (0.0, 2.0, 4.0):
            window = {"audio_filepath": sound.name, "offset": start_seconds, "duration": 2.0}
            lines.append(window | {"rttm_filepath": f"{number}.rttm", "session_id": f"{number}-{start_seconds}"})
    range_.rng.shuffle(lines)
    manifest = range_.write("windows.jsonl", "\n".join(map(json.dumps, lines)) + "\n")
    if range_.run("prepare", "sessions", "--corpus-dir", manifest, "--out", "data").code == 0:
        seen: dict[str, set[str]] = {}
        for path in range_.path("data").glob("*.jsonl"):
            for line in path.read_text().splitlines():
                seen.setdefault(Path(json.loads(line)["audio_filepath"]).name, set()).add(path.name)
        leaks = {name: sets for name, sets in seen.items() if len(sets) > 1}
        range_.expect(len(seen) == n_recordings, f"{n_recordings - len(seen)} recordings are left out")
        range_.expect(not leaks, f"in several sets: {leaks}")


@attack("zones that are not scored")
def mark_zones(range_: Range) -> None:
    start_seconds = range_.rng.randint(2, 8)
    end = 10 - start_seconds
    spoken = f"SPEAKER s 1 0 {start_seconds} <NA> <NA> a <NA> <NA>\n"
    other = f"SPEAKER s 1 {start_seconds} {end} <NA> <NA> b <NA> <NA>\n"
    zone = f"NOSCORE s 1 {start_seconds} {end} <NA> <NA> <NA> <NA> <NA>\n"
    ref, hyp = range_.write("ref.rttm", spoken + other + zone), range_.write("hyp.rttm", spoken)
    range_.accept("score", "der", "--ref", ref, "--hyp", hyp, "--scorer", "nist", "--collar", 0, "--json", "der.json")
    range_.expect(json.loads(range_.path("der.json").read_text())["overall"]["der"] == 0, "NOSCORE is scored")
    ref = range_.write("ref.stm", "s 1 a 0 2 yes\ns 1 inter_segment_gap 2 4 IGNORE_TIME_SEGMENT_IN_SCORING\n")
    hyp = range_.write("hyp.stm", "s 1 a 0 2 yes\n")
    range_.accept("score", "cpwer", "--ref", ref, "--hyp", hyp, "--json", "wer.json")
    rate = json.loads(range_.path("wer.json").read_text())["overall"]
    range_.expect(rate.get("cpwer", rate.get("error_rate")) == 0, f"an ignored segment counts: {rate}")


# ---------------------------------------------------------------------------------------------------------------------
# Models


def _pickle_call(module: str, name: str, *arguments: object) -> bytes:
    """The opcodes of {"w": module.name(*arguments)}."""
    body = pickle.dumps(arguments, protocol=2)[2:-1]
    return b"\x80\x02}X\x01\x00\x00\x00wc" + f"{module}\n{name}\n".encode() + body + b"Rs."


def _archive(config: bytes, weights: bytes | None = None, data: bytes | None = None) -> bytes:
    """A .nemo file with such a config; its weights are those of the fixture, or a pickle."""
    with tarfile.open(DIARIZER) as tar:
        members = {Path(one.name).name: tar.extractfile(one).read() for one in tar.getmembers() if one.isfile()}  # type: ignore[union-attr]
    if data is not None:
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as records:
            records.writestr("archive/data.pkl", data)
            records.writestr("archive/version", b"3\n")
        weights = file.getvalue()
    archive = io.BytesIO()
    content = {
        "model_config.yaml": config or members["model_config.yaml"],
        "model_weights.ckpt": weights or members["model_weights.ckpt"],
    }
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name, part in content.items():
            header = tarfile.TarInfo(name)
            header.size = len(part)
            tar.addfile(header, io.BytesIO(part))
    return archive.getvalue()


def _bounded(range_: Range, *arguments: Any) -> Run:
    """Run a command on a hostile file, which must be refused with little memory and time."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run = range_.refuse(*arguments, prelude=lambda: resource.setrlimit(resource.RLIMIT_AS, (12 << 30, 12 << 30)))
    assert run.usage is not None
    seconds, megabytes = run.usage.ru_utime + run.usage.ru_stime, (run.usage.ru_maxrss - before) // 1024
    range_.expect(seconds < MAX_CPU_SECONDS, f"{arguments}: {seconds:.0f} s")
    range_.expect(megabytes < MAX_MEGABYTES, f"{arguments}: {megabytes} MB")
    return run


@attack("archives and model folders that are bombs or code")
def attack_archives(range_: Range) -> None:
    rng, mark = range_.rng, range_.path("MARK")
    n_bytes = rng.randrange(2, 30) * 10**9
    pickles = [
        _pickle_call("builtins", "bytearray", n_bytes),
        _pickle_call("__builtin__", "bytearray", n_bytes),
        _pickle_call("os", "system", f"touch {mark}"),
        _pickle_call("posix", "system", f"touch {mark}"),
        _pickle_call("builtins", "eval", f"open({str(mark)!r}, 'w')"),
        _pickle_call("torch", "zeros", n_bytes),
        _pickle_call("torch.hub", "load", "x"),
        _pickle_call("numpy", "zeros", n_bytes),
    ]
    archives = [_archive(b"", data=data) for data in pickles]
    base = ":59" * rng.randrange(50_000, 300_000)
    aliases = "\n".join(
        f"{letter}: &{letter} [{', '.join([f'*{chr(ord(letter) - 1)}'] * 9)}]" for letter in "bcdefghij"
    )
    configs = [
        f"a: 59{base}",
        f"a: !!int 59{base}",
        f"a: &a [x]\n{aliases}",
        "[" * rng.randrange(200, 100_000),
        "a: " + "9" * 5000,
        "- 1\n" * 200_000,
        "a: !!python/object/apply:os.system ['touch MARK']",
    ]
    archives += [_archive(text.encode()) for text in configs]
    for archive in archives:
        range_.write("evil.nemo", archive)
        _bounded(range_, "diarize", range_.sound("a.wav", 1.0), "--model", "evil.nemo")
    range_.expect(not mark.exists(), "code of an archive was run")
    range_.accept("import-nemo", DIARIZER, "--out", "model")
    config = json.loads(range_.path("model/config.json").read_text())
    for keys, value in (
        (("features", "n_mels"), 10 ** rng.randint(6, 40)),
        (("encoder", "d_model"), 10 ** rng.randint(6, 40)),
        (("encoder", "n_layers"), 10 ** rng.randint(5, 12)),
        (("n_speakers",), 10 ** rng.randint(5, 12)),
        (("features", "n_mels"), -rng.randint(1, 100)),
    ):
        evil = json.loads(json.dumps(config))
        table = evil["options"]
        for key in keys[:-1]:
            table = table[key]
        table[keys[-1]] = value
        range_.write("model/config.json", json.dumps(evil))
        _bounded(range_, "diarize", "a.wav", "--model", "model")
    range_.write("model/config.json", json.dumps(config))
    weights = range_.path("model/model.safetensors")
    weights.unlink()
    os.mkfifo(weights)
    _bounded(range_, "diarize", "a.wav", "--model", "model")
    weights.unlink()
    weights.symlink_to("/dev/zero")
    _bounded(range_, "diarize", "a.wav", "--model", "model")


@attack("settings of models and of postprocessing that make no sense")
def give_absurd_numbers(range_: Range) -> None:
    rng, sound = range_.rng, range_.sound("a.wav", 1.0)
    config = json.loads((SHIPPED / "config.json").read_text())
    range_.path("model").mkdir()
    range_.path("model/model.safetensors").symlink_to(SHIPPED / "model.safetensors")
    large = 10 ** rng.randint(5, 40)
    for linking in (
        {"step": 1},
        {"window": 10, "step": rng.randint(11, 100)},
        {"window": large},
        {"min_alone": large},
        {"speech": rng.choice((float("nan"), float("inf"), 2, -rng.random()))},
        {rng.choice(("window", "speech")): rng.choice((None, "1", [], {}))},
        [],
    ):
        range_.write("model/config.json", json.dumps(config | {"linking": linking}))
        _bounded(range_, "diarize", sound, "--model", "model")
    for key in ("pad_onset", "pad_offset", "min_duration_on", "min_duration_off"):
        range_.write("post.toml", f"{key} = {rng.choice((large, -large, 'nan', 'inf', '1e300'))}\n")
        _bounded(range_, "diarize", sound, "--model", DIARIZER, "--postprocess", "post.toml")
    _bounded(range_, "diarize", sound, "--model", SHIPPED, "--speakers", large)


@attack("weights that are not numbers")
def poison_weights(range_: Range) -> None:
    from safetensors.torch import load_file, save_file

    range_.accept("import-nemo", DIARIZER, "--out", "model")
    config = json.loads(range_.path("model/config.json").read_text())
    del config["sha256"]
    range_.write("model/config.json", json.dumps(config))
    path = range_.path("model/model.safetensors")
    tensors = load_file(path)
    used = [name for name, tensor in tensors.items() if tensor.is_floating_point() and tensor.dim() > 1]
    for _ in range(4):
        name = range_.rng.choice(sorted(used))
        evil = dict(tensors)
        evil[name] = evil[name].clone()
        evil[name].view(-1)[range_.rng.randrange(evil[name].numel())] = range_.rng.choice((float("nan"), float("inf")))
        save_file(evil, path)
        range_.refuse("diarize", range_.sound("a.wav", 2.0), "--model", "model")


@attack("caches of models that are hostile")
def poison_cache(range_: Range) -> None:
    cache = range_.path("hub")
    model = cache / "models--nvidia--diar_sortformer_4spk-v1"
    ref = model / "refs" / "main"
    ref.parent.mkdir(parents=True)
    (model / "snapshots" / "aa").mkdir(parents=True)
    snapshot = model / "snapshots" / "aa" / "x.nemo"
    plants: list[Callable[[], object]] = [
        lambda: os.mkfifo(ref),
        lambda: ref.symlink_to("/dev/zero"),
        lambda: ref.write_text("../" * range_.rng.randint(1, 9) + "etc"),
        lambda: ref.write_bytes(range_.rng.randbytes(1000)),
        lambda: (ref.write_text("aa"), os.mkfifo(snapshot)),
        lambda: (ref.write_text("aa"), snapshot.symlink_to("/dev/zero")),
        lambda: (ref.write_text("aa"), snapshot.symlink_to(snapshot)),
    ]
    environment = {"HF_HUB_CACHE": str(cache), "HF_HUB_OFFLINE": "1"}
    for plant in plants:
        plant()
        for command in (
            ("diarize", range_.sound("a.wav", 1.0), "--model", "nvidia/diar_sortformer_4spk-v1"),
            ("models",),
        ):
            run = range_.run(*command, prelude=lambda: os.environ.update(environment))
            range_.expect(run.code == (1 if command[0] == "diarize" else 0), f"{command[0]}: exit code {run.code}")
        for path in (ref, snapshot):
            path.unlink(missing_ok=True)


@attack("import-nemo that was killed")
def kill_imports(range_: Range) -> None:
    counted = Operations()
    range_.accept("import-nemo", DIARIZER, "--out", "first", prelude=counted)
    expected = {path.name: path.read_bytes() for path in range_.path("first").iterdir()}
    for number in range(1, counted.count + 1):
        run = start(
            ["import-nemo", str(DIARIZER), "--out", "out"], range_.path(""), range_.folder / "m", Operations(number)
        )
        wait_unwatched(run)
        range_.expect(run.code == -signal.SIGKILL, f"exit code {run.code}")
        if not range_.path("out").exists():
            range_.accept("import-nemo", DIARIZER, "--out", "out")
        found = {path.name: path.read_bytes() for path in range_.path("out").iterdir()}
        range_.expect(found.keys() == expected.keys(), f"killed at operation {number}: {sorted(found)}")
        range_.expect(not range_.path(".out.importing").exists(), "the killed import is left behind")
        shutil.rmtree(range_.path("out"))


# ---------------------------------------------------------------------------------------------------------------------
# Manners


@attack("closed standard streams")
def close_streams(range_: Range) -> None:
    ref, sound = _rttm(range_), range_.sound("a.wav", 1.0)
    commands = (
        ("diarize", sound, "--model", DIARIZER, "--out-dir", "out"),
        ("score", "der", "--ref", ref, "--hyp", ref),
        ("validate", ref),
        ("diarize", "-", "--model", DIARIZER),
    )
    for command in commands:
        for closed in ((0,), (1,), (2,), (0, 1), (1, 2), (0, 1, 2)):
            run = start(
                [*map(str, command)], range_.path(""), range_.folder / "m", lambda closed=closed: _close(closed)
            )
            wait_unwatched(run)
            range_.count.tried += 1
            told = run.told()
            range_.expect(run.code in (0, 1), f"{command[0]}, {closed} closed: exit code {run.code}, {told[-200:]!r}")
            range_.expect("Traceback" not in told and "bug of" not in told, f"{command[0]}, {closed}: {told[-200:]!r}")
            if 2 not in closed and run.code == 1:
                range_.expect("sortk: " in told, f"{command[0]}, {closed} closed: no sentence")


def _close(numbers: tuple[int, ...]) -> None:
    """As `<&- >&- 2>&-` do: the stream is not there when Python starts."""
    for number in numbers:
        os.close(number)
        setattr(sys, ("stdin", "stdout", "stderr")[number], None)
