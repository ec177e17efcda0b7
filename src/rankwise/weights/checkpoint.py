"""Any checkpoint in: finds out what a file or folder is by its first bytes, and reads what it holds."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rankwise.errors import RankwiseError
from rankwise.weights.danger import what_would_run
from rankwise.weights.dcp import METADATA, read_dcp
from rankwise.weights.deepspeed import is_deepspeed, read_deepspeed
from rankwise.weights.dtensor import has_rank_parts, join_ranks
from rankwise.weights.exported import read_exported
from rankwise.weights.opcodes import PickleBytes, read_pickle
from rankwise.weights.plain_files import check_path, open_bytes, unreadable
from rankwise.weights.safetensors_file import RANK_FILE, join_rank_files, read_index, read_safetensors
from rankwise.weights.state_dicts import is_training_key
from rankwise.weights.tensor_records import ITEM_SIZES, CheckpointError, Content, Damaged, TensorRecord, joined_content
from rankwise.weights.torch_file import LEGACY_MAGIC, read_legacy, read_torch_zip
from rankwise.weights.zipped import Repacked, names_in_archive, open_archive

# The first of these in a folder is the model, as one file or as the index of several. The others may be the same model in another format.
_IN_FOLDER = (
    *("model.safetensors", "pytorch_model.bin", "pytorch_model_fsdp.bin"),  # the last one by Accelerate, beside sampler.bin and others
    *("diffusion_pytorch_model.safetensors", "adapter_model.safetensors", "model.pt"),
)
_ADAPTERS = ("adapter_model.safetensors", "adapter_model.bin")
_INDEX = ".index.json"
_IS_INDEX = re.compile(r".*\.index(\.\w+)?\.json", re.DOTALL)  # diffusers puts a variant between: model.safetensors.index.fp16.json
_SUFFIXES = (".safetensors", ".pt", ".pth", ".ckpt", ".bin", ".pth.tar")
_PART = re.compile(r"(.*)-\d+-of-(?!0*1\.)\d+(\.\w+)")  # one of several files that an index lists
_COMPARED = 4096  # bytes of each tensor
_MAX_RANKS = 4096
_DCP_SUFFIX = ".distcp"
_HEAD = 4096  # bytes of a file that say what wrote it
_IN_TORCHS = {"data.pkl", "archive_format", "models/model.json"}  # one of these is in each archive of torch.save or torch.export
_FOREIGN = {
    b"version https://git-lfs": ("a Git LFS pointer, not the file itself", "git lfs pull"),
    b"<!doctype": ("a web page", "download the file itself"),
    b"<html": ("a web page", "download the file itself"),
    b"<?xml": ("XML, as a server answers that refuses a download", "download the file itself"),
    b"GGUF": ("a GGUF file of llama.cpp", "convert it with the gguf package"),
    b"\x89HDF": ("an HDF5 file, as Keras writes it", "load it with h5py"),
    b"\x93NUMPY": ("a NumPy array", "numpy.load reads it"),
    b"\x1f\x8b": ("compressed with gzip", "gunzip it first"),
    b"BZh": ("compressed with bzip2", "bunzip2 it first"),
    b"\xfd7zXZ": ("compressed with xz", "unxz it first"),
    b"\x28\xb5\x2f\xfd": ("compressed with zstd", "unzstd it first"),
}


def open_checkpoint(path: str | os.PathLike[str]) -> Content:
    """What the file or folder holds. Executes nothing and reads no tensor; raises CheckpointError for what cannot be used."""
    place = check_path(path)
    try:
        return _read_folder(place) if place.is_dir() else _read_file(place)
    except Damaged as error:
        raise CheckpointError("RW732", f"{place} is damaged", why=str(error)) from error
    except OSError as error:  # it may not even be looked at
        raise unreadable(error.filename or place, error) from error


def _read_file(path: Path) -> Content:
    shards = path.resolve().parent / "shards"
    if path.resolve().name == "state.pt" and (shards / METADATA).is_file():
        return read_dcp(shards)  # rankwise.train with sharded=True: state.pt, and last.pt that points to it, hold all but the weights
    if path.name == METADATA or path.suffix == _DCP_SUFFIX:
        raise _foreign(
            path, "one file of torch.distributed.checkpoint, whose weights are in all of them", f"give their folder, {path.parent}"
        )
    if Path(f"{path}.aria2").exists():  # it takes its full size at once, so what is missing would be zeros
        raise _foreign(path, f"a download that has not ended, for {path.name}.aria2 is beside it", "let aria2c end it: run it again")
    data = open_bytes(path)
    head = bytes(data[:64])
    if not head:
        raise _foreign(path, "an empty file", "save it again; an empty file is what a full disk leaves, or a save that has only begun")
    if head[:4] == b"PK\x03\x04":
        return _read_zip(path, data)
    if head[2:15] == LEGACY_MAGIC:
        return read_legacy(path, data)
    if head[8:9] == b"{":
        return read_safetensors(path, data)
    if _IS_INDEX.fullmatch(path.name):
        return read_index(path, _read_shard)
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip().lower()  # a web page may begin with a blank line, and in capital letters
    for magic, (what, next_step) in _FOREIGN.items():
        if head.startswith(magic) or text.startswith(magic):
            raise _foreign(path, what, next_step)
    if data[257:262] == b"ustar":
        raise _foreign(path, "a tar archive", f"tar -xf {path.name}, then give the checkpoint that was in it")
    if head[:1] == b"\x80" and head[1:2] in (b"\2", b"\3", b"\4", b"\5"):
        return _read_bare_pickle(path, data)
    if not head.strip(b"\0"):
        raise Damaged("it begins with zeros, as a file does whose writing was cut off")
    raise _foreign(path, f"none of the formats that are known; it begins with {head[:16]!r}")


def _read_shard(path: Path) -> Content:
    """Read one shard, of any format, because an index may name files of torch.save too. A shard must not be an index itself."""
    if _IS_INDEX.fullmatch(path.name):
        raise Damaged(f"{path.name} is an index, and named as a part")
    try:
        return _read_file(path)
    except Damaged as error:
        raise Damaged(f"{path.name}: {error}") from error


def _read_zip(path: Path, data: Any) -> Content:
    try:
        archive = open_archive(path, data)
    except Damaged as error:
        _check_is_torchs(path, names_in_archive(data))  # other programs compress, which is no damage
        if isinstance(error, Repacked):
            steps = (f"unzip -d unpacked {path.name} && cd unpacked && zip -0 -r -D ../stored.pt .", "then use stored.pt")
            raise _foreign(path, f"an archive of torch.save that was packed again: {error}", *steps) from error
        raise
    _check_is_torchs(path, list(archive.entries))
    is_exported = "archive_format" in archive.entries or "models/model.json" in archive.entries
    return read_exported(path, archive) if is_exported else read_torch_zip(path, archive)


def _check_is_torchs(path: Path, names: list[str]) -> None:
    if not _IN_TORCHS.isdisjoint({name.partition("/")[2] for name in names} | set(names)):
        return
    if names and all(name.endswith(".npy") for name in names):
        raise _foreign(path, "an archive of NumPy arrays (.npz)", "numpy.load reads it")
    inside = [name for name in names if name.endswith(_SUFFIXES)]
    what = "that" if len(inside) == 1 else "the one with the weights"
    steps = (f"unzip {path.name} {' '.join(inside[:4])}, then give {what}",) if inside else ()
    raise _foreign(path, f"a zip archive without data.pkl; it has {', '.join(names[:3])[:200]}", *steps)


def _read_bare_pickle(path: Path, data: Any) -> Content:
    """Refuse a state dict written by pickle.dump: its tensors are bytes that only a call of torch.load could open."""
    try:
        would_run = what_would_run(read_pickle(PickleBytes(data)))
    except Damaged:
        if b"joblib.numpy_pickle" in data[:_HEAD]:  # joblib puts the bytes of arrays between the opcodes
            raise _foreign(path, "a file of joblib.dump", "if you trust it: joblib.load reads it, torch.save writes its tensors") from None
        raise
    if would_run:
        return Content("pickle", {}, (path,), would_run=would_run)
    raise _foreign(path, "a pickle without tensors")


def _read_folder(folder: Path) -> Content:
    if (folder / METADATA).is_file():
        return read_dcp(folder)
    try:
        names = sorted(entry.name for entry in os.scandir(folder))
    except OSError as error:
        raise _foreign(folder, f"a folder that cannot be listed ({error.strerror})") from error
    if f"__0{METADATA}" in names:
        what = f"of torch.distributed.checkpoint with use_collectives=False, where each rank has a {METADATA} of its own"
        raise _foreign(folder, what, "dcp.load it on as many ranks, and dcp.save it without that")
    if any(name.endswith(_DCP_SUFFIX) for name in names):
        what = (
            f"files of torch.distributed.checkpoint without {METADATA}, which it writes last; the save did not end, or the copy left it out"
        )
        raise _foreign(folder, what, f"copy {METADATA} too, which `cp folder/*` leaves out", "or use an earlier checkpoint")
    for name in _IN_FOLDER:
        if found := [each for each in (name, name + _INDEX) if (folder / each).is_file()]:
            _check_only(folder, found)
            _check_no_adapter(folder, found[0])
            content = _unless_hollow(_with_numbered(folder, found[0], names), folder)
            _check_same_model(folder, content, found[0])
            return content
    if is_deepspeed(folder):
        return read_deepspeed(folder)
    # Accelerate with FSDP keeps the model in a folder of its own, beside the folder of the optimizer
    inner = [name for name in names if name.startswith("pytorch_model") and (folder / name / METADATA).is_file()]
    if len(inner) == 1:
        return read_dcp(folder / inner[0])
    files = [name for name in names if (folder / name).is_file()]
    indices = _weights_among(files, [suffix + _INDEX for suffix in _SUFFIXES]) or [name for name in files if _IS_INDEX.fullmatch(name)]
    fitting = indices or _weights_among(files, _SUFFIXES)
    if not fitting:
        if broken := [name for name in names if name.endswith(_SUFFIXES) and (folder / name).is_symlink()]:
            what = f"a folder whose {broken[0]} is a link to {os.readlink(folder / broken[0])}, which is not there"
            raise _foreign(folder, what, "copy what links point to, as `cp -rL` does")  # a snapshot of HuggingFace's cache, without blobs
        raise _foreign(folder, "a folder without a checkpoint" + (f"; it has {', '.join(names[:6])}"[:200] if names else ""))
    if len(fitting) > 1 and not RANK_FILE.fullmatch(fitting[0]) and (joined := _joined_ranks(folder, fitting)) is not None:
        return joined
    if all(RANK_FILE.fullmatch(name) for name in fitting):
        return join_rank_files([_read_file(folder / name) for name in fitting])
    if part := _PART.fullmatch(fitting[0]):
        what = f"a folder with {fitting[0]}, and without the index that says which files belong to it"
        raise _foreign(folder, what, f"copy {part[1]}{part[2]}{_INDEX} too")
    _check_only(folder, fitting)
    content = _read_file(folder / fitting[0])
    _check_same_model(folder, content, fitting[0])
    return content


def _weights_among(names: list[str], suffixes: Sequence[str]) -> list[str]:
    """The files that may hold weights, without those of an optimizer. Of weights in several formats, the first of the suffixes counts."""
    found: dict[str, str] = {}
    for suffix in suffixes:
        for name in names:
            stem = name.removesuffix(suffix)
            if stem != name and not is_training_key(stem) and not stem.startswith("extra_state"):  # where verl keeps its scheduler
                found.setdefault(stem, name)
    return list(found.values())


def _check_only(folder: Path, names: list[str]) -> None:
    if len(names) > 1:
        raise _foreign(folder, f"a folder with {len(names)} checkpoints: {', '.join(names[:6])}", "give one of them")


def _check_no_adapter(folder: Path, name: str) -> None:
    """Refuse an adapter beside a model. HuggingFace loads it into the model, so the model's file alone would compute something else."""
    if name not in _ADAPTERS and (adapter := next((each for each in _ADAPTERS if (folder / each).is_file()), None)):
        steps = (f"for the model without it: {folder / name}", "for both: load them with peft, merge_and_unload(), save that")
        raise _foreign(folder, f"a folder with a model, {name}, and an adapter that changes it, {adapter}", *steps)


def _check_same_model(folder: Path, content: Content, name: str) -> None:
    """Refuse two models of one name: `save_pretrained(safe_serialization=False)` leaves the safetensors of an older one beside what it
    writes. Compared are the first bytes of each tensor, for training changes almost all."""
    stem = name.removesuffix(_INDEX).removesuffix(".safetensors")
    for other in (f"{'pytorch_' * (stem == 'model')}{stem}.bin{end}" for end in ("", _INDEX)):
        if not (folder / other).is_file():
            continue
        try:
            tree = _read_file(folder / other).tree
        except (RankwiseError, Damaged):
            continue  # a Git LFS pointer, for example; it is not what is loaded
        files: dict[Path, Any] = {}
        if any(_differ(value, tree.get(each), files) for each, value in content.tree.items()):
            steps = (f"for the newer one, if that is {other}: {folder / other}", f"for the other: {folder / name}")
            raise _foreign(folder, f"a folder with two models of the same names and other numbers, {name} and {other}", *steps)


def _differ(one: Any, other: Any, files: dict[Path, Any]) -> bool:
    """Whether two tensors of one dtype and layout begin with other bytes."""
    if not (isinstance(one, TensorRecord) and isinstance(other, TensorRecord) and one.storage and other.storage):
        return False
    is_alike = (one.dtype, one.shape, one.strides) == (other.dtype, other.shape, other.strides)
    return is_alike and _first_bytes(one, files) != _first_bytes(other, files)


def _first_bytes(record: TensorRecord, files: dict[Path, Any]) -> bytes:
    assert record.storage is not None
    path = record.storage.path
    files[path] = files.get(path) or open_bytes(path)
    start = record.storage.offset + record.first * ITEM_SIZES[record.dtype]
    return bytes(files[path][start : start + min(record.nbytes, _COMPARED)])


def _with_numbered(folder: Path, name: str, names: list[str]) -> Content:
    """Accelerate calls the second model of a training `model_1.safetensors`. It becomes a set of weights beside the first one."""
    stem, suffix = os.path.splitext(name)
    others = [each for each in names if re.fullmatch(rf"{re.escape(stem)}_\d+{re.escape(suffix)}", each)]
    first = _read_file(folder / name)
    if not others:
        return first
    contents = {stem: first} | {os.path.splitext(each)[0]: _read_file(folder / each) for each in others}
    tree = {each: content.tree for each, content in contents.items()}
    return joined_content(first.format, tree, list(contents.values()))


def _unless_hollow(content: Content, folder: Path) -> Content:
    """ZeRO-3 leaves empty placeholders where the weights would be; then the weights are in DeepSpeed's own files."""
    empty = [isinstance(value, TensorRecord) and not value.numel for value in content.tree.values()]
    return read_deepspeed(folder) if any(empty) and is_deepspeed(folder) else content


def _joined_ranks(folder: Path, names: list[str]) -> Content | None:
    """The joined files of all ranks, if each holds its rank's part of the same tensors."""
    if len(names) > _MAX_RANKS:
        return None
    try:
        first = _read_file(folder / names[0])
    except CheckpointError as error:
        if error.finding.code == "RW733":
            return None  # SpeechBrain calls its notes brain.ckpt
        raise
    return join_ranks([first, *(_read_file(folder / name) for name in names[1:])]) if has_rank_parts(first.tree) else None


def _foreign(path: Path, what: str, *next_steps: str) -> CheckpointError:
    return CheckpointError("RW733", f"{path} is not a checkpoint: {what}", next=next_steps)
