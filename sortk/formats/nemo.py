"""NVIDIA's `.nemo` archives: a tar with a model's config, its weights, and the files that the config names.

Archives come from anywhere, so nothing in them is trusted. Members are read by name, straight from the archive: nothing
is unpacked, but a compressed archive into a nameless temporary file. Weights are tensors or refused, so no code of an
archive ever runs. models/nemo.py interprets an archive's config.
"""

from __future__ import annotations

import gzip
import itertools
import pickle
import pickletools
import re
import tarfile
import tempfile
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

import torch
import yaml
from torch import Tensor

from sortk.formats.files import FormatError, quote

CONFIG_NAME, WEIGHTS_NAME = "model_config.yaml", "model_weights.ckpt"
ALIGNER_NAME = "timestamps_asr_model_weights.ckpt"  # of a second model, which finds the times of a Canary's words
FILE_PREFIX = "nemo:"  # how the config marks the name of another member

MAX_MEMBERS = 1000
MAX_CONFIG_BYTES = 1 << 20  # NVIDIA's have 10 to 100 kB
MAX_CONFIG_DEPTH = 100
MAX_PICKLE_BYTES = 64 << 20  # names and shapes of tensors; their numbers are elsewhere
MAX_FILE_BYTES = 64 << 20  # of a member that the config names, such as a tokenizer
MAX_WEIGHTS_BYTES = 32 << 30
MAX_UNPACKING = 20  # an archive may unpack to as many times its size (weights: hardly more than once),
FREE_UNPACKED_BYTES = 1 << 20  # beyond this much, which a tar of nothing but padding may have

COPY_BYTES = 1 << 20  # at a time

TAR_ERRORS = (tarfile.TarError, ValueError, OverflowError, RecursionError, EOFError, OSError)  # of a broken header


@dataclass(frozen=True)
class NemoArchive:
    """What is in an archive, as NVIDIA names it."""

    config: dict[str, Any]
    tensors: dict[str, Tensor]
    files: dict[str, bytes]  # members that the config's tokenizers name, by that name
    has_aligner: bool


def read(path: Path) -> NemoArchive:
    """Return the contents of an archive. FormatError, with nothing written or run, if anything is wrong with it."""
    with _open_archive(path) as archive:
        config = _parse_config(archive)
        names = set(_find_names(config.get("tokenizer")))
        files = {name: archive.open(name, MAX_FILE_BYTES).read() for name in names}
        weights, n_bytes = archive.open(WEIGHTS_NAME, MAX_WEIGHTS_BYTES), archive.members[WEIGHTS_NAME].size
        tensors = load_torch(weights, n_bytes, path, WEIGHTS_NAME)
        return NemoArchive(config, tensors, files, ALIGNER_NAME in archive.members)


def read_config(path: Path) -> dict[str, Any]:
    """Return an archive's config alone."""
    with _open_archive(path) as archive:
        return _parse_config(archive)


@dataclass(frozen=True)
class _Archive:
    path: Path
    tar: tarfile.TarFile
    members: Mapping[str, tarfile.TarInfo]

    def open(self, name: str, max_bytes: int) -> IO[bytes]:
        """Return a member as a file to read."""
        if name not in self.members:
            raise FormatError(self.path, None, f"no {quote(name)} in the archive")
        member = self.members[name]
        if member.size > max_bytes:
            raise FormatError(self.path, None, f"{name} has {member.size} bytes, more than the {max_bytes} allowed")
        file = self.tar.extractfile(member)
        assert file is not None  # it is a plain file
        return file


@contextmanager
def _open_archive(path: Path) -> Iterator[_Archive]:
    if path.is_dir():
        raise IsADirectoryError(f"{path}: is a folder, not a .nemo file")
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    with path.open("rb") as raw, _unpack(raw, path) as file:
        try:
            tar = tarfile.open(fileobj=file, mode="r:")  # noqa: SIM115 (it holds nothing but `file`)
        except TAR_ERRORS as error:
            raise FormatError(path, None, f"not a .nemo file, which is a tar archive ({error})") from None
        yield _Archive(path, tar, _list_members(tar, path, file.seek(0, 2)))


@contextmanager
def _unpack(file: IO[bytes], path: Path) -> Iterator[IO[bytes]]:
    """Yield the archive itself or, if an older NeMo compressed it, an uncompressed copy."""
    magic = file.read(2)
    n_bytes = file.seek(0, 2)
    file.seek(0)
    if magic != b"\x1f\x8b":
        yield file
        return
    allowed = FREE_UNPACKED_BYTES + MAX_UNPACKING * n_bytes
    with tempfile.TemporaryFile() as unpacked, gzip.GzipFile(fileobj=file) as packed:
        try:
            while block := packed.read(COPY_BYTES):
                unpacked.write(block)
                if unpacked.tell() > allowed:
                    raise FormatError(path, None, f"unpacks to more than {MAX_UNPACKING} times its size: no model does")
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise FormatError(path, None, f"damaged gzip data ({error})") from None
        unpacked.seek(0)
        yield unpacked


def _list_members(tar: tarfile.TarFile, path: Path, n_bytes: int) -> dict[str, tarfile.TarInfo]:
    """Return the plain files of an archive by name; refuse an archive with anything but files and folders."""
    members: dict[str, tarfile.TarInfo] = {}
    for number in itertools.count():
        try:
            member = tar.next()
        except TAR_ERRORS as error:
            raise FormatError(path, None, f"damaged tar archive ({error})") from None
        if member is None:
            break
        if number == MAX_MEMBERS:
            raise FormatError(path, None, f"more than {MAX_MEMBERS} members in the archive")
        if fault := _member_fault(member, n_bytes):
            raise FormatError(path, None, f"member {quote(member.name)} of the archive {fault}")
        name = str(PurePosixPath(member.name))  # without a leading "./"
        if name in members:
            raise FormatError(path, None, f"member {quote(member.name)} is in the archive twice")
        if not member.isdir():
            members[name] = member
    return members


def _member_fault(member: tarfile.TarInfo, n_bytes: int) -> str:
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts:
        return "has a path that leads out of it"
    if not member.isdir() and (member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or member.issparse()):
        return "is a link, a device or the like, not a plain file"
    if not 0 <= member.size <= n_bytes - member.offset_data:
        return f"is cut off: it should have {member.size} bytes, but the archive ends before"
    return ""


class _PlainLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML without numbers to the base of 60: reading 59:59:59... takes time that is quadratic in its length."""

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> str:
        if kind is yaml.ScalarNode and ":" in value:
            return "tag:yaml.org,2002:str"
        return str(super().resolve(kind, value, implicit))

    def construct_number(self, node: yaml.ScalarNode) -> Any:
        """Construct a number, also one that is marked as one: !!int 59:59."""
        if ":" in str(node.value):
            raise yaml.YAMLError("it has a number with a colon, which is not allowed")
        return self.construct_yaml_int(node) if node.tag.endswith(":int") else self.construct_yaml_float(node)


for _tag in ("int", "float"):
    _PlainLoader.add_constructor(f"tag:yaml.org,2002:{_tag}", _PlainLoader.construct_number)


def _parse_config(archive: _Archive) -> dict[str, Any]:
    text = archive.open(CONFIG_NAME, MAX_CONFIG_BYTES).read()
    try:
        _check_events(text)
        config = yaml.load(text, _PlainLoader)
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        about = " ".join(str(error).split())
        raise FormatError(archive.path, None, f"broken {CONFIG_NAME} ({about})") from None
    if not isinstance(config, dict):
        raise FormatError(archive.path, None, f"{CONFIG_NAME} is not a table of settings")
    return config


def _check_events(text: bytes) -> None:
    """Refuse aliases, of which a few lines can stand for more than any memory holds, and deep nesting. NeMo writes
    neither."""
    depth = 0
    for event in yaml.parse(text, _PlainLoader):
        if isinstance(event, yaml.AliasEvent):
            raise yaml.YAMLError("it has aliases, which are not allowed")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_CONFIG_DEPTH:
            raise yaml.YAMLError(f"it is nested more than {MAX_CONFIG_DEPTH} deep")


def _find_names(value: Any) -> list[str]:
    """Return every NAME of the strings nemo:NAME in a part of the config."""
    if isinstance(value, str):
        return [value.removeprefix(FILE_PREFIX)] if value.startswith(FILE_PREFIX) else []
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    return [name for part in inner for name in _find_names(part)]


def load_torch(file: IO[bytes], n_bytes: int, path: Path, what: str) -> dict[str, Tensor]:
    """Return the tensors of a file that torch.save has written; FormatError if it holds anything else.

    `what` it is called in messages: a member of the archive `path`, or the file itself.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            records = archive.infolist()
            # Compressed or overlapping records could take more memory than the checkpoint has bytes.
            if any(record.compress_type != zipfile.ZIP_STORED for record in records):
                raise zipfile.BadZipFile("its records are compressed")
            if sum(record.file_size for record in records) > n_bytes:
                raise zipfile.BadZipFile("its records overlap")
            _check_pickles(archive)
        file.seek(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about tensors that are refused below
            tensors = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        reason = f"{what} holds more than tensors, and loading it could run code: refused"
        raise FormatError(path, None, reason) from None
    except Exception as error:  # on arbitrary bytes the reader can fail in any way
        about = (str(error) or type(error).__name__).splitlines()[0]
        raise FormatError(path, None, f"damaged {what} ({about})") from None
    if not isinstance(tensors, dict):
        raise FormatError(path, None, f"{what} does not hold tensors by their names")
    for name, tensor in tensors.items():
        if not isinstance(name, str) or not _is_plain(tensor):
            raise FormatError(path, None, f"{quote(name)} in {what} is not a plain tensor")
    return tensors


_ALLOWED = {
    "collections OrderedDict",
    "torch._utils _rebuild_tensor_v2",
    "torch._utils _rebuild_parameter",
    "torch.storage UntypedStorage",
}
_ALLOWED_TORCH = re.compile(r"torch (\w+Storage|Size|(b?float|u?int|complex)\d+|bool|half|double|float|long|int|short)")
_REFUSED_OPCODES = {"STACK_GLOBAL", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "EXT1", "EXT2", "EXT4", "NEXT_BUFFER"}


def _check_pickles(archive: zipfile.ZipFile) -> None:
    """Refuse a checkpoint that calls anything but what makes tensors: torch lets `bytearray(8_000_000_000)` pass."""
    for record in archive.infolist():
        if not record.filename.endswith(".pkl"):
            continue
        if record.file_size > MAX_PICKLE_BYTES:
            raise zipfile.BadZipFile(f"its {record.filename} has {record.file_size} bytes")
        for opcode, argument, _ in pickletools.genops(archive.read(record)):
            if opcode.name in _REFUSED_OPCODES or (
                opcode.name == "GLOBAL" and argument not in _ALLOWED and not _ALLOWED_TORCH.fullmatch(str(argument))
            ):
                raise pickle.UnpicklingError(f"{opcode.name} {argument}")


def _is_plain(tensor: Any) -> bool:
    """Return whether all numbers of a tensor are in memory: a view may repeat a few bytes to any size."""
    if not isinstance(tensor, Tensor) or tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
        return False
    return tensor.numel() * tensor.element_size() <= tensor.untyped_storage().nbytes()
