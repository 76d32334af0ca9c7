"""What a bug report needs to know of a machine: versions, devices, memory, disk, Slurm, corpora. No names, no secrets.

Folders are not named, nor are hosts, users and environment variables: the output is made to be posted.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module, metadata
from pathlib import Path

from packaging.requirements import Requirement

from sortk import __version__
from sortk.run.workers import count_cores

GB = 1e9
LITTLE_MEMORY_GB = 3.0
LEAST_DISK_GB = 1.0
SLURM_PATIENCE_SECONDS = 5.0  # a controller that is down makes sinfo wait for minutes

# Packages that carry libraries of other languages: there, and yet they may fail to load.
LOADED = {"soundfile": "soundfile", "torch": "torch", "torchaudio": "torchaudio", "silero-vad": "silero_vad"}
NO_CORPORA = ("espeak", "sources", "sessions")  # voices that come with sortk, and data of one's own
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: what was looked at, what was found and, if it has to be mended, how."""

    name: str
    found: str
    advice: str = ""  # empty: nothing has to be done


def examine(folder: Path, corpora_dir: str) -> list[Finding]:
    """All findings on this machine, for work in `folder` with corpora in `corpora_dir` (empty: nobody has said)."""
    return [
        Finding("sortk", describe_versions()),
        Finding("system", platform.platform()),
        *examine_packages(),
        examine_devices(),
        examine_memory(),
        examine_disk(folder),
        examine_access(folder),
        examine_slurm(),
        examine_espeak(),
        examine_browser(),
        examine_corpora(corpora_dir),
    ]


def describe_versions() -> str:
    """What `sortk --version` prints. torch is not imported for it, which would take seconds."""
    torch = _installed_version("torch")
    cuda = f", CUDA {_cuda_of_torch() or 'none'}" if torch else ""
    return f"{__version__}, Python {platform.python_version()}, torch {torch or 'missing'}{cuda}"


def _cuda_of_torch() -> str | None:
    """The CUDA that torch was built for: torch.version.cuda, read and not imported."""
    path = Path(str(metadata.distribution("torch").locate_file("torch/version.py")))
    if not path.is_file():
        return None
    found = re.search(r"^cuda\b[^=\n]*= *['\"]([\d.]+)['\"]", path.read_text(encoding="utf-8"), re.MULTILINE)
    return found and found[1]


def examine_packages() -> Iterator[Finding]:
    """The packages that sortk needs, those that load with other libraries, and those of each extra."""
    try:
        requirements = [Requirement(line) for line in metadata.requires("sortk") or ()]
    except metadata.PackageNotFoundError:
        yield Finding("packages", "sortk is not installed", "run make setup, or pip install . in the checkout")
        return
    needed = [requirement for requirement in requirements if _applies(requirement, "")]
    faults = [fault for requirement in needed if (fault := _find_fault(requirement))]
    faults += [fault for package, module in LOADED.items() if (fault := _fail_to_load(package, module))]
    versions = ", ".join(f"{each.name} {_installed_version(each.name) or 'missing'}" for each in needed)
    advice = f"{'; '.join(faults)}: run make setup, or pip install . in the checkout" if faults else ""
    yield Finding("packages", versions, advice)
    extras = sorted(set(metadata.metadata("sortk").get_all("Provides-Extra") or ()))
    yield Finding("extras", "; ".join(f"{extra}: {_describe_extra(requirements, extra)}" for extra in extras))


def _applies(requirement: Requirement, extra: str) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def _describe_extra(requirements: list[Requirement], extra: str) -> str:
    """All there, or what is not; packages that are needed anyway, and extras of extras, are told elsewhere."""
    own = [each for each in requirements if _applies(each, extra) and not _applies(each, "") and each.name != "sortk"]
    return ", ".join(fault for each in own if (fault := _find_fault(each))) or "there"


def _find_fault(requirement: Requirement) -> str:
    version = _installed_version(requirement.name)
    if version is None:
        return f"{requirement.name} is missing"
    if not requirement.specifier.contains(version, prereleases=True):
        return f"{requirement.name} is {version}, not {requirement.specifier}"
    return ""


def _fail_to_load(package: str, module: str) -> str:
    if _installed_version(package) is None:
        return ""  # told already
    try:
        import_module(module)
    except (ImportError, OSError, RuntimeError) as error:  # a library that is missing or does not fit
        return f"{package} cannot be loaded ({type(error).__name__})"
    return ""


def _installed_version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def examine_devices() -> Finding:
    """GPUs, and the cores that this process may use."""
    cores = f"{count_cores()} of {os.cpu_count()} cores"
    try:
        torch = import_module("torch")
    except (ImportError, OSError, RuntimeError):
        return Finding("device", cores)  # that torch does not load is told with the packages
    gpus = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
    names = [f"{gpu.name} ({gpu.total_memory / GB:.0f} GB)" for gpu in gpus] if torch.cuda.is_available() else []
    return Finding("device", f"{', '.join(names) or 'no GPU'}; {cores}, {torch.get_num_threads()} threads in torch")


def examine_memory() -> Finding:
    """What the machine has, and what is free of it."""
    total, free = _read_pages("SC_PHYS_PAGES"), _read_pages("SC_AVPHYS_PAGES")
    with contextlib.suppress(OSError):  # Linux only
        lines = Path("/proc/meminfo").read_text(encoding="utf-8")
        if available := re.search(r"^MemAvailable: +(\d+) kB", lines, re.MULTILINE):
            free = int(available[1]) * 1024 / GB  # counts caches that would make room
    if total is None or free is None:  # macOS does not say what is free
        return Finding("memory", "unknown" if total is None else f"{total:.1f} GB")
    low = " (little: the 123M model takes about 2 GB)" if free < LITTLE_MEMORY_GB else ""
    return Finding("memory", f"{total:.1f} GB, {free:.1f} GB free{low}")


def _read_pages(name: str) -> float | None:
    """Return a number of memory pages in GB; None if the system does not have it by that name."""
    try:
        return os.sysconf(name) * os.sysconf("SC_PAGE_SIZE") / GB
    except (AttributeError, OSError, ValueError):
        return None


def examine_disk(folder: Path) -> Finding:
    """The disk that the folder lies on. No room for anything is a fault; large experiments need far more."""
    usage = shutil.disk_usage(folder)
    advice = "make room on the disk, or work in another folder" if usage.free < LEAST_DISK_GB * GB else ""
    return Finding("disk", f"{usage.total / GB:.0f} GB, {usage.free / GB:.1f} GB free", advice)


def examine_access(folder: Path) -> Finding:
    """Found out by writing: rights, quotas and read-only mounts all count."""
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".sortk-doctor-") as file:
            file.write(b"x")
    except OSError as error:
        return Finding("folder", f"cannot be written ({error.strerror})", "cd to a folder that is yours")
    return Finding("folder", "this folder can be written")


def examine_slurm() -> Finding:
    """Whether --cluster slurm could work."""
    if shutil.which("sinfo") is None:
        return Finding("Slurm", "none (no sinfo)")
    command = ["sinfo", "--noheader", "--format=%D nodes %t"]
    try:
        states = subprocess.run(command, capture_output=True, text=True, check=True, timeout=SLURM_PATIENCE_SECONDS)
    except (OSError, subprocess.SubprocessError):
        return Finding("Slurm", "sinfo is there, but no controller answers")
    return Finding("Slurm", ", ".join(states.stdout.split("\n")[:-1]) or "no nodes")


def examine_espeak() -> Finding:
    """The voices of the recipe mini and of miniatures: library and data come inside a package."""
    try:
        loader = import_module("espeakng_loader")
        there = all(Path(path).exists() for path in (loader.get_library_path(), loader.get_data_path()))
    except (ImportError, OSError, RuntimeError):
        there = False
    if there:
        return Finding("espeak-ng", "there")
    return Finding("espeak-ng", "missing", "run pip install --force-reinstall espeakng-loader")


def examine_browser() -> Finding:
    """Only the tests of report pages drive a browser."""
    there = any(shutil.which(name) for name in BROWSERS)
    return Finding("Chromium", "there" if there else "none (tests of pages are skipped)")


def examine_corpora(corpora_dir: str) -> Finding:
    """Which corpora lie in the folder of corpora, under their names."""
    if not corpora_dir:
        return Finding("corpora", "not looked for; say where: --corpora-dir DIR, or the variable CORPORA")
    folder = Path(corpora_dir)
    if not folder.is_dir():
        return Finding("corpora", "--corpora-dir is not a directory", "check --corpora-dir, or the variable CORPORA")
    try:
        known = import_module("sortk.corpora.registry").CORPORA
    except ImportError:
        return Finding("corpora", "not looked for: packages are missing")
    needed = [name for name in known if name not in NO_CORPORA]
    found = [name for name in needed if (folder / name).is_dir()]
    missing = [name for name in needed if name not in found]
    return Finding("corpora", f"{', '.join(found) or 'none'} (not there: {', '.join(missing) or 'none'})")
