"""Checkpoints nobody should load: cut off, changed, lying about their size, or wanting to run something."""

from __future__ import annotations

import json
import os
import pickle
import random
import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

TEN_GB = 10 * 1000**3
_MARK = "EXECUTED"  # every bomb tries to make a file of this name beside itself


class Bomb:
    """Pickles into a call."""

    def __init__(self, target: Callable[..., Any], *args: Any) -> None:
        self._call = (target, args)

    def __reduce__(self) -> Any:
        return self._call


def marker(folder: Path) -> str:
    return str(folder / _MARK)


def zip_with(path: Path, pickled: bytes, storages: dict[str, bytes] | None = None, compress: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(path, "w", compress) as archive:
        archive.writestr("x/data.pkl", pickled)
        archive.writestr("x/byteorder", b"little")
        for key, content in (storages or {}).items():
            archive.writestr(f"x/data/{key}", content)
        archive.writestr("x/version", b"3\n")


def tensor_pickle(shape: tuple[int, ...], strides: tuple[int, ...], numel: int, key: str = "0", name: str = "w") -> bytes:
    """A state dict with one float32 tensor, by hand, so that every number can be a lie."""

    def number(value: int) -> bytes:
        return b"\x8a\x08" + struct.pack("<q", value)

    def text(value: str) -> bytes:
        return b"X" + struct.pack("<I", len(value)) + value.encode()

    sizes = b"(" + b"".join(map(number, shape)) + b"t" + b"(" + b"".join(map(number, strides)) + b"t"
    storage = b"(" + text("storage") + b"ctorch\nFloatStorage\n" + text(key) + text("cpu") + number(numel) + b"tQ"
    tensor = b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + number(0) + sizes + b"\x89ccollections\nOrderedDict\n)RtR"
    return b"\x80\x02}" + text(name) + tensor + b"s."


def safetensors_with(path: Path, header: Any, data: bytes = b"", length: int | None = None) -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)


def write_bad(folder: Path, corpus: Path) -> dict[str, set[str]]:
    """Write all of them into `folder`; returns for each the codes that are right for it."""
    wanted: dict[str, set[str]] = {}
    for write in (_bombs, _sizes, _tricks, _foreign, _cut, _structures):
        wanted |= write(folder, corpus)
    return wanted


def _bombs(folder: Path, corpus: Path) -> dict[str, set[str]]:
    mark = marker(folder)
    bombs: dict[str, bytes] = {
        "system": pickle.dumps({"model": Bomb(os.system, f"touch {mark}")}),
        "exec": pickle.dumps({"model": Bomb(exec, f"open({mark!r}, 'w')")}),
        "popen": pickle.dumps({"model": Bomb(__import__("subprocess").Popen, ["touch", mark])}),
        "instance": b"(S'touch " + mark.encode() + b"'\nios\nsystem\n.",
        "object": b"(cos\nsystem\nS'touch " + mark.encode() + b"'\no.",
        "eval": pickle.dumps([Bomb(eval, f"__import__('os').system('touch {mark}')")]),
        "extension": b"\x80\x02\x82\x01.",
        "state": b"\x80\x02cpathlib\nPath\n)\x81}X\x01\x00\x00\x00aK\x01sb.",
        "hidden": pickle.dumps({"model": {}, "rest": [Bomb(os.system, f"touch {mark}")]})[:-1] + b"0N.",
    }
    for name, pickled in bombs.items():
        zip_with(folder / f"bomb_{name}.pt", pickled)
        (folder / f"bomb_{name}.pkl").write_bytes(pickled)
    wanted = {f"bomb_{name}.pt": {"RW731"} for name in bombs}
    wanted |= {f"bomb_{name}.pkl": {"RW731", "RW733"} for name in bombs}
    metadata = folder / "bomb_dcp"
    shutil.copytree(corpus / "dcp_ddp", metadata)
    (metadata / ".metadata").write_bytes(bombs["system"])
    sharded = folder / "bomb_shard"
    shutil.copytree(corpus / "hub_sharded_bin", sharded)
    zip_with(next(sharded.glob("*-00001-*")), bombs["system"])
    legacy = bytearray((corpus / "legacy.pt").read_bytes())
    at = legacy.index(b"\x80\x02ccollections")  # the fourth pickle
    (folder / "bomb_legacy.pt").write_bytes(bytes(legacy[:at]) + bombs["system"] + bytes(legacy[at:]))
    return wanted | {"bomb_dcp": {"RW731"}, "bomb_shard": {"RW731", "RW732"}, "bomb_legacy.pt": {"RW731", "RW732"}}


def _sizes(folder: Path, corpus: Path) -> dict[str, set[str]]:
    zip_with(folder / "size_shape.pt", tensor_pickle((TEN_GB // 4,), (1,), 4), {"0": b"\0" * 16})
    zip_with(folder / "size_storage.pt", tensor_pickle((4,), (1,), TEN_GB // 4), {"0": b"\0" * 16})
    zip_with(folder / "size_negative.pt", tensor_pickle((-4,), (1,), 4), {"0": b"\0" * 16})
    zip_with(folder / "size_overflow.pt", tensor_pickle((1 << 61, 1 << 61), (1, 1), 4), {"0": b"\0" * 16})
    zip_with(folder / "size_expanded.pt", tensor_pickle((TEN_GB // 4, 4), (0, 1), 4), {"0": b"\0" * 16})
    zip_with(folder / "size_string.pt", b"\x80\x04\x8e" + struct.pack("<Q", TEN_GB) + b"abc.")
    zip_with(folder / "size_deflated.pt", b"\x80\x02}." + b"\0" * (200 << 20), compress=zipfile.ZIP_DEFLATED)
    entry = bytearray((corpus / "expected.pt").read_bytes())
    central = entry.index(b"PK\x01\x02")
    entry[central + 20 : central + 28] = struct.pack("<II", 0xF0000000, 0xF0000000)
    (folder / "size_zip_entry.pt").write_bytes(entry)
    end = bytearray((corpus / "expected.pt").read_bytes())
    last = end.rindex(b"PK\x06\x06")  # the 64-bit record, which torch always writes and which counts
    end[last + 40 : last + 48] = struct.pack("<Q", TEN_GB)
    (folder / "size_zip_directory.pt").write_bytes(end)
    legacy = bytearray((corpus / "legacy.pt").read_bytes())
    first = legacy.rindex(b"e.") + 2  # behind the list of storages
    legacy[first : first + 8] = struct.pack("<Q", TEN_GB)
    (folder / "size_legacy.pt").write_bytes(legacy)
    safetensors_with(folder / "size_header.safetensors", {}, length=TEN_GB)
    huge = {"w": {"dtype": "F32", "shape": [TEN_GB // 4], "data_offsets": [0, TEN_GB]}}
    safetensors_with(folder / "size_tensor.safetensors", huge, b"\0" * 16)
    (folder / "size_index").mkdir()
    index = {"metadata": {"total_size": TEN_GB}, "weight_map": {f"w{i}": f"m-{i:05}.safetensors" for i in range(2000)}}
    (folder / "size_index" / "model.safetensors.index.json").write_text(json.dumps(index))
    shutil.copytree(corpus / "dcp_fsdp2", folder / "size_dcp")
    metadata = folder / "size_dcp" / ".metadata"
    metadata.write_bytes(metadata.read_bytes().replace(b"K\x10K\x04\x86", b"J\xff\xff\xff\x7fK\x04\x86"[:5].ljust(5, b"0"), 1))
    names = [path.name for path in folder.iterdir() if path.name.startswith("size_")]
    return {name: {"RW732", "RW734", "RW736"} for name in names} | {"size_deflated.pt": {"RW733"}}


def _tricks(folder: Path, corpus: Path) -> dict[str, set[str]]:
    wanted = {}
    shards = {
        "up": "../../../../../../etc/passwd", "absolute": "/etc/passwd", "nul": "a\0b", "empty": "", "dots": "..",
        "backslash": "..\\x", "missing": "gone.safetensors", "number": 7, "list": ["a"], "folder": "sub",
    }  # fmt: skip
    for name, shard in shards.items():
        place = folder / f"trick_{name}"
        (place / "sub").mkdir(parents=True)
        (place / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": shard}}))
        wanted[place.name] = {"RW736", "RW732"} if name in ("number", "list") else {"RW736"}
    shutil.copytree(corpus / "dcp_ddp", folder / "trick_dcp")
    metadata = folder / "trick_dcp" / ".metadata"
    metadata.write_bytes(metadata.read_bytes().replace(b"__0_0.distcp", b"../etc/passw"))
    (folder / "trick_loop").symlink_to("trick_loop")
    (folder / "trick_dangling.pt").symlink_to("nowhere.pt")
    os.mkfifo(folder / "trick_fifo.pt")
    (folder / "trick_device.pt").symlink_to("/dev/zero")
    nested = folder / "trick_nested_loop"
    nested.mkdir()
    (nested / "again").symlink_to("..")
    (nested / "model.safetensors").symlink_to("model.safetensors")
    (folder / "trick_folder_as_file").mkdir()
    (folder / "trick_folder_as_file" / "model.safetensors").mkdir()
    wanted |= {"trick_dcp": {"RW736"}, "trick_nested_loop": {"RW733"}, "trick_folder_as_file": {"RW733"}}
    return wanted | {name: {"RW002"} for name in ("trick_loop", "trick_dangling.pt", "trick_fifo.pt", "trick_device.pt", "not_there.pt")}


def _foreign(folder: Path, corpus: Path) -> dict[str, set[str]]:
    contents = {
        "empty.pt": b"", "text.pt": b"epoch 3, loss 0.1\n" * 100, "one_byte.pt": b"P", "cut_pickle.pt": b"\x80",
        "png.pt": b"\x89PNG\r\n\x1a\n" + b"\0" * 100,
        "lfs.safetensors": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "page.pt": b"<!DOCTYPE html><html>",
        "array.pt": b"\x93NUMPY\x01\0" + b"\0" * 100, "gzip.pt": b"\x1f\x8b\x08" + b"\0" * 50, "gguf.pt": b"GGUF" + b"\0" * 50,
        "plain_pickle.pt": pickle.dumps({"a": 1}), "random.pt": random.Random(1).randbytes(5000),
    }  # fmt: skip
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    with zipfile.ZipFile(folder / "other_zip.pt", "w") as archive:
        archive.writestr("word/document.xml", "<x/>")
    (folder / "empty_folder").mkdir()
    (folder / "two_checkpoints").mkdir()
    for name in ("a.pt", "b.pt"):
        shutil.copy(corpus / "ddp.pt", folder / "two_checkpoints" / name)
    names = [*contents, "other_zip.pt", "empty_folder", "two_checkpoints"]
    (folder / "zeros.pt").write_bytes(b"\0" * 5000)
    return {name: {"RW733"} for name in names} | {"zeros.pt": {"RW732"}, "random.pt": {"RW733", "RW732"}}


def _cut(folder: Path, corpus: Path) -> dict[str, set[str]]:
    wanted = {}
    for name in ("expected.pt", "legacy.pt", "plain.safetensors", "program.pt2", "lightning.ckpt"):
        whole = (corpus / name).read_bytes()
        for part in (0.05, 0.3, 0.7, 0.97):
            place = folder / f"cut_{int(part * 100)}_{name}"
            place.write_bytes(whole[: int(len(whole) * part)])
            wanted[place.name] = {"RW732", "RW733"}
    for name in ("hub_sharded", "dcp_fsdp2"):
        place = folder / f"cut_{name}"
        shutil.copytree(corpus / name, place)
        shard = max((path for path in place.iterdir() if path.suffix in (".safetensors", ".distcp")), key=lambda path: path.stat().st_size)
        shard.write_bytes(shard.read_bytes()[: shard.stat().st_size // 2])
        wanted[place.name] = {"RW732"}
    return wanted


def _structures(folder: Path, corpus: Path) -> dict[str, set[str]]:
    """Valid, but built to make a reader work forever or run out of stack."""
    circle: dict[str, Any] = {}
    circle["model"] = circle
    laughs: Any = {"w": 1}
    for _ in range(60):
        laughs = {str(i): laughs for i in range(10)}
    zip_with(folder / "circle.pt", pickle.dumps(circle))
    zip_with(folder / "laughs.pt", pickle.dumps(laughs))
    many = b"\x80\x02" + tensor_pickle((4,), (1,), 4)[2:-1] + b"q\x00"
    for level in range(1, 30):  # dictionaries of ten times the one before, down to a real tensor
        many += b"}(" + b"".join(b"U\x01" + bytes([48 + i]) + b"h" + bytes([level - 1]) for i in range(10)) + b"uq" + bytes([level])
    zip_with(folder / "laughing_tensors.pt", many + b".", {"0": b"\0" * 16})
    zip_with(folder / "deep.pt", b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".")
    zip_with(folder / "no_stop.pt", b"\x80\x02}")
    zip_with(folder / "pops.pt", b"\x80\x020000.")
    zip_with(folder / "memo.pt", b"\x80\x02h\x07.")
    zip_with(folder / "long.pt", b"\x80\x02\x8b" + struct.pack("<i", 1 << 20) + b"\xff" * (1 << 20) + b".")
    safetensors_with(folder / "nested.safetensors", b"{" + b'"a":{' * 100_000)
    safetensors_with(folder / "twice.safetensors", b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{}}', b"\0")
    safetensors_with(folder / "words.safetensors", {"a": {"dtype": "F32", "shape": ["1"], "data_offsets": [0, 4]}}, b"\0" * 4)
    safetensors_with(folder / "list.safetensors", b"{}" + b" " * 6, b"extra")
    names = [
        "laughing_tensors.pt",
        "circle.pt",
        "laughs.pt",
        "deep.pt",
        "no_stop.pt",
        "pops.pt",
        "memo.pt",
        "long.pt",
        "nested.safetensors",
        "twice.safetensors",
    ]
    return {name: {"RW732", "RW735"} for name in [*names, "words.safetensors", "list.safetensors"]}
