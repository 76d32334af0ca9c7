"""What a bug report needs to know about a machine: versions, devices, memory, disk, Slurm, corpora.

The output is made to be posted: it names no folder, host, user or environment variable.
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

# Packages with compiled libraries: they may be installed and still fail to load.
LOADED = {
    "onnxruntime": "onnxruntime",
    "soundfile": "soundfile",
    "torch": "torch",
    "torchaudio": "torchaudio",
    "silero-vad": "silero_vad",
}
NO_CORPORA = ("espeak", "sources", "sessions")  # voices that come with sortk, and the user's own data
DEVELOPER_EXTRAS = ("audit", "dev", "fuzz", "meeteval")  # which users do not need
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: what was examined, what was found and, if it must be repaired, how."""

    name: str
    found: str
    advice: str = ""  # empty: nothing has to be done


def examine(folder: Path, corpora_dir: str) -> list[Finding]:
    """Return all findings on this machine, for work in `folder` with corpora in `corpora_dir` (empty: not given)."""
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
    """Return what `sortk --version` prints, without importing torch, which would take seconds."""
    versions = f"{__version__}, Python {platform.python_version()}"
    torch = _installed_version("torch")
    if torch is None:
        return f"{versions}, torch missing"
    path, cuda = Path(str(metadata.distribution("torch").locate_file("torch/version.py"))), None
    if path.is_file():  # torch.version.cuda, what it was built for
        cuda = re.search(r"^cuda\b[^=\n]*= *['\"]([\d.]+)['\"]", path.read_text(encoding="utf-8"), re.MULTILINE)
    return f"{versions}, torch {torch}, CUDA {cuda[1] if cuda else 'none'}"


def examine_packages() -> Iterator[Finding]:
    """Check the packages that sortk needs, whether compiled ones load, and the packages of each extra."""
    try:
        requirements = [Requirement(line) for line in metadata.requires("sortk") or ()]
    except metadata.PackageNotFoundError:
        yield Finding("packages", "sortk is not installed", "run make setup, or pip install . in the checkout")
        return
    needed = [requirement for requirement in requirements if _applies(requirement, "")]
    faults = [fault for requirement in needed if (fault := _find_fault(requirement))]
    faults += [fault for requirement in needed if (fault := _fail_to_load(requirement.name))]
    versions = ", ".join(f"{each.name} {_installed_version(each.name) or 'missing'}" for each in needed)
    advice = f"{'; '.join(faults)}: run make setup, or pip install . in the checkout" if faults else ""
    yield Finding("packages", versions, advice)
    extras = sorted(set(metadata.metadata("sortk").get_all("Provides-Extra") or ()) - set(DEVELOPER_EXTRAS))
    yield Finding("extras", "; ".join(f"{extra}: {_describe_extra(requirements, extra)}" for extra in extras))


def _applies(requirement: Requirement, extra: str) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def _describe_extra(requirements: list[Requirement], extra: str) -> str:
    """Return "installed", or what is missing or does not load of the packages that only this extra needs."""
    own = [each for each in requirements if _applies(each, extra) and not _applies(each, "") and each.name != "sortk"]
    faults = [fault for each in own if (fault := _find_fault(each) or _fail_to_load(each.name))]
    return ", ".join(faults) or "installed"


def _find_fault(requirement: Requirement) -> str:
    version = _installed_version(requirement.name)
    if version is None:
        return f"{requirement.name} is missing"
    if not requirement.specifier.contains(version, prereleases=True):
        return f"{requirement.name} is {version}, not {requirement.specifier}"
    return ""


def _fail_to_load(package: str) -> str:
    if package not in LOADED or _installed_version(package) is None:
        return ""  # a missing one is reported already
    try:
        import_module(LOADED[package])
    except (ImportError, OSError, RuntimeError) as error:  # a library that is missing or does not fit
        use = ", which only WavLM needs" if package == "torchaudio" else ""
        return f"{package} cannot be loaded ({type(error).__name__}){use}"
    return ""


def _installed_version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def examine_devices() -> Finding:
    """Find the GPUs, and the cores that this process may use."""
    cores = f"{count_cores()} of {os.cpu_count()} cores"
    try:
        torch = import_module("torch")
    except (ImportError, OSError, RuntimeError):
        return Finding("device", cores)  # that torch does not load is reported with the packages
    gpus = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
    names = [f"{gpu.name} ({gpu.total_memory / GB:.0f} GB)" for gpu in gpus] if torch.cuda.is_available() else []
    n_threads = torch.get_num_threads()
    threads = f"{n_threads} thread{'' if n_threads == 1 else 's'} in torch"
    return Finding("device", f"{', '.join(names) or 'no GPU'}; {cores}, {threads}")


def examine_memory() -> Finding:
    """Find how much memory the machine has, and how much of it is free."""
    total, free = _read_pages("SC_PHYS_PAGES"), _read_pages("SC_AVPHYS_PAGES")
    with contextlib.suppress(OSError):  # Linux only
        lines = Path("/proc/meminfo").read_text(encoding="utf-8")
        if available := re.search(r"^MemAvailable: +(\d+) kB", lines, re.MULTILINE):
            free = int(available[1]) * 1024 / GB  # counts caches that would make room
    if total is None or free is None:  # macOS does not report what is free
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
    """Find the space on the disk of the folder. Hardly any space is a fault; large experiments need far more."""
    usage = shutil.disk_usage(folder)
    advice = "make room on the disk, or work in another folder" if usage.free < LEAST_DISK_GB * GB else ""
    return Finding("disk", f"{usage.total / GB:.0f} GB, {usage.free / GB:.1f} GB free", advice)


def examine_access(folder: Path) -> Finding:
    """Write a file: permissions, quotas and read-only mounts all count."""
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".sortk-doctor-") as file:
            file.write(b"x")
    except OSError as error:
        return Finding("folder", f"not writable ({error.strerror})", "change to a folder that you can write to")
    return Finding("folder", "writable")


def examine_slurm() -> Finding:
    """Find out whether --cluster slurm could work."""
    if shutil.which("sinfo") is None:
        return Finding("Slurm", "none (no sinfo)")
    command = ["sinfo", "--noheader", "--format=%D nodes %t"]
    try:
        states = subprocess.run(command, capture_output=True, text=True, check=True, timeout=SLURM_PATIENCE_SECONDS)
    except (OSError, subprocess.SubprocessError):
        return Finding("Slurm", "sinfo is installed, but no controller answers")
    return Finding("Slurm", ", ".join(states.stdout.split("\n")[:-1]) or "no nodes")


def examine_espeak() -> Finding:
    """Check the voices of the recipe mini and of miniatures: library and data come inside a package."""
    try:
        loader = import_module("espeakng_loader")
        there = all(Path(path).exists() for path in (loader.get_library_path(), loader.get_data_path()))
    except (ImportError, OSError, RuntimeError):
        there = False
    if there:
        return Finding("espeak-ng", "installed")
    return Finding("espeak-ng", "missing", "run pip install --force-reinstall espeakng-loader")


def examine_browser() -> Finding:
    """Look for a browser, which only the tests of report pages need."""
    there = any(shutil.which(name) for name in BROWSERS)
    return Finding("Chromium", "installed" if there else "none (only tests of pages need it)")


def examine_corpora(corpora_dir: str) -> Finding:
    """Find the corpora that are in `corpora_dir`, each in a folder of its name."""
    if not corpora_dir:
        return Finding("corpora", "not checked; give --corpora-dir DIR, or set the variable CORPORA")
    folder = Path(corpora_dir)
    if not folder.is_dir():
        return Finding("corpora", "--corpora-dir is not a directory", "check --corpora-dir, or the variable CORPORA")
    try:
        known = import_module("sortk.corpora.registry").CORPORA
    except ImportError:
        return Finding("corpora", "not checked: packages are missing")
    needed = [name for name in known if name not in NO_CORPORA]
    found = [name for name in needed if (folder / name).is_dir()]
    missing = [name for name in needed if name not in found]
    return Finding("corpora", f"{', '.join(found) or 'none'} (missing: {', '.join(missing) or 'none'})")
