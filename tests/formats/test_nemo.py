from __future__ import annotations

import gzip
import io
import os
import pickle
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nemo_models import write_nemo

from sortk.formats import nemo
from sortk.formats.files import FormatError

CONFIG = {"target": "a.B", "encoder": {"n_layers": 2}}
TENSORS = {"encoder.weight": torch.arange(6.0).view(2, 3), "encoder.steps": torch.tensor(7)}


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return write_nemo(tmp_path / "model.nemo", CONFIG, TENSORS)


def add(path: Path, name: str, content: bytes = b"", **fields: Any) -> None:
    """Appends a member to an archive."""
    with tarfile.open(path, "a") as tar:
        member = tarfile.TarInfo(name)
        member.size = len(content)
        for field, value in fields.items():
            setattr(member, field, value)
        tar.addfile(member, io.BytesIO(content))


def replace_member(path: Path, name: str, content: bytes) -> None:
    with tarfile.open(path) as tar:
        kept = [(member, tar.extractfile(member)) for member in tar.getmembers() if member.isfile()]
        contents = {member.name: file.read() for member, file in kept if file is not None}
    contents[f"./{name}"] = content
    with tarfile.open(path, "w") as tar:
        for member_name, data in contents.items():
            member = tarfile.TarInfo(member_name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))


def assert_archive(path: Path) -> None:
    found = nemo.read(path)
    assert found.config == CONFIG and found.files == {}
    assert found.tensors.keys() == TENSORS.keys()
    assert all(torch.equal(found.tensors[name], TENSORS[name]) for name in TENSORS)


def test_config_and_tensors_come_out_as_they_went_in(archive: Path) -> None:
    assert_archive(archive)
    assert nemo.read_config(archive) == CONFIG


def test_an_archive_may_be_compressed(tmp_path: Path) -> None:
    assert_archive(write_nemo(tmp_path / "packed.nemo", CONFIG, TENSORS, mode="w:gz"))


def test_files_that_the_tokenizer_names_come_with_it(tmp_path: Path) -> None:
    tokenizer = {"langs": {"en": {"model_path": "nemo:1_a.model", "dir": "/not/read"}}, "vocab": ["nemo:2_b.txt"]}
    files = {"1_a.model": b"\x00\x01", "2_b.txt": b"words", "3_c.txt": b"not named"}
    path = write_nemo(tmp_path / "model.nemo", {"tokenizer": tokenizer}, TENSORS, files)
    assert nemo.read(path).files == {"1_a.model": b"\x00\x01", "2_b.txt": b"words"}


def test_a_tokenizer_file_that_is_not_there(tmp_path: Path) -> None:
    path = write_nemo(tmp_path / "model.nemo", {"tokenizer": {"model_path": "nemo:../../etc/passwd"}}, TENSORS)
    with pytest.raises(FormatError, match="model.nemo: no '../../etc/passwd' in the archive"):
        nemo.read(path)


@pytest.mark.parametrize(
    ("name", "fields", "fault"),
    [
        ("../outside.txt", {}, "has a path that leads out of it"),
        ("/tmp/outside.txt", {}, "has a path that leads out of it"),
        ("link", {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"}, "is a link, a device or the like"),
        ("link", {"type": tarfile.LNKTYPE, "linkname": "./model_weights.ckpt"}, "is a link, a device or the like"),
        ("null", {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 3}, "is a link, a device or the like"),
        ("pipe", {"type": tarfile.FIFOTYPE}, "is a link, a device or the like"),
        ("./model_config.yaml", {}, "is in the archive twice"),
        ("model_config.yaml", {}, "is in the archive twice"),
    ],
)
def test_members_that_no_model_has(archive: Path, name: str, fields: dict[str, Any], fault: str) -> None:
    add(archive, name, **fields)
    with pytest.raises(FormatError, match=f"model.nemo: member '{name}' .*{fault}"):
        nemo.read(archive)


def test_a_link_in_place_of_the_weights(tmp_path: Path) -> None:
    path = tmp_path / "model.nemo"
    with tarfile.open(path, "w"):
        pass
    add(path, "./model_config.yaml", b"target: a.B\n")
    add(path, "./model_weights.ckpt", type=tarfile.SYMTYPE, linkname="/etc/passwd")
    with pytest.raises(FormatError, match="'./model_weights.ckpt' of the archive is a link"):
        nemo.read(path)


@pytest.mark.parametrize("share", [0.05, 0.3, 0.6])
@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_a_truncated_archive(tmp_path: Path, share: float, mode: str) -> None:
    big = {"weight": torch.randn(100, 100)}
    path = write_nemo(tmp_path / "model.nemo", CONFIG, big, mode=mode)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    with pytest.raises(FormatError, match=r"model.nemo: .*(is cut off|no 'model_weights.ckpt'|damaged gzip data)"):
        nemo.read(path)


def test_a_member_that_claims_to_be_huge(archive: Path) -> None:
    data = bytearray(archive.read_bytes())
    at = data.index(b"./model_weights.ckpt")
    header = tarfile.TarInfo.frombuf(bytes(data[at : at + 512]), "utf-8", "surrogateescape")
    header.size = 1 << 40
    data[at : at + 512] = header.tobuf(tarfile.GNU_FORMAT)
    archive.write_bytes(data)
    with pytest.raises(FormatError, match="'./model_weights.ckpt' of the archive is cut off: .* 1099511627776 bytes"):
        nemo.read(archive)


def test_a_config_that_is_too_long(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nemo, "MAX_CONFIG_BYTES", 10)
    with pytest.raises(FormatError, match="model_config.yaml has [0-9]+ bytes, more than the 10 allowed"):
        nemo.read(archive)


def test_too_many_members(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nemo, "MAX_MEMBERS", 2)
    with pytest.raises(FormatError, match="more than 2 members"):
        nemo.read(archive)


def test_a_bomb(tmp_path: Path) -> None:
    path = tmp_path / "bomb.nemo"
    path.write_bytes(gzip.compress(bytes(30 << 20)))
    with pytest.raises(FormatError, match="bomb.nemo: unpacks to more than 20 times its size"):
        nemo.read(path)


@pytest.mark.parametrize("content", [b"", b"RIFF....WAVE", b"\x1f\x8bnot gzip", bytes(5000)])
def test_something_else(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "speech.nemo"
    path.write_bytes(content)
    with pytest.raises(FormatError, match=r"speech.nemo: (not a .nemo file|damaged gzip|no 'model_config.yaml')"):
        nemo.read(path)


def test_no_file_at_all(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="none.nemo: no such file"):
        nemo.read(tmp_path / "none.nemo")
    with pytest.raises(IsADirectoryError, match="is a folder"):
        nemo.read(tmp_path)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (b"target: !!python/object/apply:os.system ['touch HERE']", "broken model_config.yaml"),
        (b"target: [1, 2", "broken model_config.yaml"),
        (b"a: &a [1]\nb: [*a, *a]", "it has aliases"),
        (b"- just\n- a list", "is not a table of settings"),
        (b"\xff\xfe\xfd", "broken model_config.yaml"),
        (b"[" * 500, "broken model_config.yaml"),
        (b"a: 2026-99-99", "broken model_config.yaml"),
    ],
)
def test_configs(archive: Path, text: bytes, fault: str, tmp_path: Path) -> None:
    here = tmp_path / "executed"
    replace_member(archive, "model_config.yaml", text.replace(b"HERE", bytes(here)))
    with pytest.raises(FormatError, match=fault) as caught:
        nemo.read(archive)
    assert "\n" not in str(caught.value)
    assert not here.exists()


class Malicious:
    """Runs a command when it is unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch {self.target}",)


def as_checkpoint(value: Any) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def test_weights_with_code_are_refused_and_not_run(archive: Path, tmp_path: Path) -> None:
    malicious = Malicious(tmp_path / "executed")
    for content in (as_checkpoint({"encoder.weight": malicious}), pickle.dumps(malicious)):
        replace_member(archive, "model_weights.ckpt", content)
        with pytest.raises(FormatError, match=r"could run code: refused|damaged model_weights.ckpt") as caught:
            nemo.read(archive)
        assert "\n" not in str(caught.value)
    assert not malicious.target.exists()


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ([torch.zeros(2)], "does not hold tensors by their names"),
        ({"a": 3}, "'a' in model_weights.ckpt is not a plain tensor"),
        ({3: torch.zeros(2)}, "3 in model_weights.ckpt is not a plain tensor"),
        ({"a": torch.zeros(1).expand(1 << 40)}, "'a' in model_weights.ckpt is not a plain tensor"),
        ({"a": torch.zeros(2, device="meta")}, "model_weights.ckpt holds more than tensors"),
        ({"a": torch.zeros(3).to_sparse()}, "model_weights.ckpt holds more than tensors"),
    ],
)
def test_weights_that_are_none(archive: Path, value: Any, fault: str) -> None:
    replace_member(archive, "model_weights.ckpt", as_checkpoint(value))
    with pytest.raises(FormatError, match=fault):
        nemo.read(archive)


def test_a_script_in_place_of_weights(archive: Path) -> None:
    file = io.BytesIO()
    torch.jit.save(torch.jit.script(torch.nn.ReLU()), file)
    replace_member(archive, "model_weights.ckpt", file.getvalue())
    with pytest.raises(FormatError, match="damaged model_weights.ckpt"):
        nemo.read(archive)


def test_weights_that_are_compressed(archive: Path) -> None:
    """Records of a checkpoint never are; they could unpack to any size."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as records:
        records.writestr("archive/data.pkl", bytes(1 << 20))
    replace_member(archive, "model_weights.ckpt", file.getvalue())
    with pytest.raises(FormatError, match="its records are compressed"):
        nemo.read(archive)


def test_nothing_is_left_on_the_disk(archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = tmp_path / "temporary"
    empty.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(empty))
    packed = write_nemo(tmp_path / "packed.nemo", CONFIG, TENSORS, mode="w:gz")
    add(archive, "../outside.txt", b"out")
    nemo.read(packed)
    with pytest.raises(FormatError):
        nemo.read(archive)
    assert not list(empty.iterdir())
    assert sorted(file.name for file in tmp_path.iterdir()) == ["model.nemo", "packed.nemo", "temporary"]


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_damage_anywhere_is_a_sentence_or_harmless(archive: Path, data: st.DataObject) -> None:
    whole = archive.read_bytes()
    damaged = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    path = archive.with_name("damaged.nemo")
    path.write_bytes(damaged)
    try:
        found = nemo.read(path)
    except FormatError as error:
        assert "\n" not in str(error)
    else:
        assert all(isinstance(tensor, torch.Tensor) for tensor in found.tensors.values())


class _Calls:
    """A checkpoint with a call in its pickle, that torch's own check allows."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.call


@pytest.mark.parametrize("call", [_Calls(bytearray, 8_000_000_000), _Calls(set, [1]), _Calls(slice, 1, 2)])
def test_calls_that_make_no_tensor_are_refused_before_they_run(
    archive: Path, call: _Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = io.BytesIO()
    torch.save({"a": call}, content)
    replace_member(archive, "model_weights.ckpt", content.getvalue())
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("loaded"))
    with pytest.raises(FormatError, match="holds more than tensors"):
        nemo.read(archive)


@pytest.mark.parametrize(
    "text",
    [
        "a: " + "59:" * 300_000 + "59",
        "a: !!int '" + "59:" * 300_000 + "59'",
        "a: " + "59:" * 300_000 + "59.5",
        "[" * 500_000,
        "a: [" + "1," * 100_000 + "1]",
        "a: *b",
    ],
)
def test_hostile_configs_take_no_time(archive: Path, text: str) -> None:
    replace_member(archive, "model_config.yaml", text.encode())
    began = time.process_time()
    try:
        nemo.read_config(archive)
    except FormatError as error:
        assert "model_config.yaml" in str(error)
    assert time.process_time() - began < 20


def test_a_time_in_a_config_is_a_text(archive: Path) -> None:
    replace_member(archive, "model_config.yaml", b"a: 1:30\nb: 0x10\nc: 1e-3\nd: 3\ne: 1.5\nf: true\ng: null\n")
    found = nemo.read_config(archive)
    assert found == {"a": "1:30", "b": 16, "c": "1e-3", "d": 3, "e": 1.5, "f": True, "g": None}
