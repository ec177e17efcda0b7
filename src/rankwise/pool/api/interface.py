"""What a model takes and gives, as far as its `.pt2` program or an example input says so. Reads files, runs nothing, needs no torch."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rankwise.errors import UnreadableInput
from rankwise.pool.api.output_names import output_names
from rankwise.pool.memory.datatypes import NAMES, TensorSpec

Specs = tuple[TensorSpec, ...]
_SCHEMA = 8  # the major version of the program's description that is understood; others say nothing
_LARGEST = 256 << 20
_DATATYPES = {
    1: "UINT8", 2: "INT8", 3: "INT16", 4: "INT32", 5: "INT64", 6: "FP16", 7: "FP32", 8: "FP64", 12: "BOOL", 13: "BF16",
    28: "UINT16", 34: "UINT32", 35: "UINT64",
}  # fmt: skip
_OF_TORCH = {"bfloat16": "BF16", "bool": "BOOL", "float16": "FP16", "float32": "FP32", "float64": "FP64"}


def of_program(path: str | Path) -> tuple[Specs, Specs]:
    """Inputs and outputs of an exported program; each empty where it cannot be said in terms of the protocol."""
    try:
        said = _description(path)
        if said["schema_version"]["major"] != _SCHEMA:
            return (), ()
        module = said["graph_module"]
        signature, tensors = module["signature"], module["graph"]["tensor_values"]
        call = next(entry["signature"] for entry in module["module_call_graph"] if entry["fqn"] == "")
        inputs = [_argument(spec["user_input"], tensors) for spec in signature["input_specs"] if "user_input" in spec]
        outputs = [_argument(spec["user_output"], tensors) for spec in signature["output_specs"] if "user_output" in spec]
        names = _input_names(call["in_spec"], [name for name, _, _ in inputs]), _output_names(call["out_spec"], len(outputs))
        return _specs(names[0], inputs), _specs(names[1], outputs)
    except (OSError, zipfile.BadZipFile, ValueError, KeyError, TypeError, IndexError, StopIteration, RecursionError, NotImplementedError):
        return (), ()  # the worker that loads it will say what is wrong with it


def of_example(example: Any, max_batch: int, names: Iterable[str] = ()) -> Specs:
    """Of arrays or tensors that a model takes, one or a tuple of them; with batches, the first dimension may have any size."""
    arrays = example if isinstance(example, tuple) else (example,)
    known = list(names) or [f"input_{i}" for i in range(len(arrays))]
    found = []
    for name, array in zip(known, arrays):
        datatype = _datatype(getattr(array, "dtype", None))
        if not datatype or not hasattr(array, "shape"):
            return ()
        shape = tuple(int(size) for size in array.shape)
        found.append(TensorSpec(name, datatype, (-1, *shape[1:]) if max_batch > 1 and shape else shape))
    return tuple(found)


def read_example(path: Path) -> dict[str, Any]:
    """The arrays of a .npz by name, in its order; of a .npy one, under the name `input_0`."""
    try:
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return {"input_0": loaded}
        with loaded:
            return {name: loaded[name] for name in loaded.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise UnreadableInput(
            f"the example {path} cannot be read", why=str(error)[:200], next=("write it with numpy.save or numpy.savez",)
        ) from None


def _description(path: str | Path) -> Any:
    with zipfile.ZipFile(path) as archive:
        entry = next(item for item in archive.infolist() if item.filename.endswith("/models/model.json"))
        if entry.file_size > _LARGEST:
            raise ValueError("too large to be one")
        return json.loads(archive.read(entry))


def _argument(said: Mapping[str, Any], tensors: Mapping[str, Any]) -> tuple[str, str, tuple[int, ...]]:
    """KeyError for what is no tensor, or of a type that the protocol does not know."""
    name = said["arg"]["as_tensor"]["name"]
    tensor = tensors[name]
    return name, _DATATYPES[tensor["dtype"]], tuple(size.get("as_int", -1) for size in tensor["sizes"])


def _input_names(spec: str, names: list[str]) -> list[str]:
    """Empty where the program does not take plain positional tensors."""
    args, kwargs = json.loads(spec)[1]["children_spec"]
    is_plain = not kwargs["children_spec"] and all(child["type"] is None for child in args["children_spec"])
    return names if is_plain else []


def _output_names(spec: str, count: int) -> list[str]:
    tree = json.loads(spec)[1]
    children, kind = tree["children_spec"], tree["type"]
    if kind is None:
        return output_names(None)
    if any(child["type"] is not None for child in children):
        return []
    if kind in ("builtins.tuple", "builtins.list"):
        return output_names(count)
    return [str(name) for name in json.loads(tree["context"])] if kind == "builtins.dict" else []


def _specs(names: list[str], found: list[tuple[str, str, tuple[int, ...]]]) -> Specs:
    if len(names) != len(found):
        return ()
    return tuple(TensorSpec(name, datatype, shape) for name, (_, datatype, shape) in zip(names, found))


def _datatype(dtype: Any) -> str:
    """Of numpy's, or of torch's, which is known by its name only."""
    if isinstance(dtype, np.dtype):
        return "BYTES" if dtype.kind in "SUO" else NAMES.get(dtype.newbyteorder("<"), "")
    name = str(dtype).removeprefix("torch.")
    return _OF_TORCH.get(name) or (name.upper() if name.upper() in NAMES.values() else "")
