"""MODELS.toml: which models there are, how they are built, and what their inputs and outputs are called.

For `rankwise serve` and `rankwise worker`; reads and checks, starts nothing, needs no torch. Files are named relative to the folder of
MODELS.toml, builds are imported as `python -c "import my_models"` would in the caller's folder."""

from __future__ import annotations

import difflib
import json
import tomllib
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from rankwise.errors import UnreadableInput, UsageError
from rankwise.pool.api.ensembles import MERGES, checked_weights
from rankwise.pool.api.model import Model, output_names, parse_bytes
from rankwise.protocol import DATATYPES, NAMES, TensorSpec

_OF_MODEL = {own.name for own in fields(Model)} - {"warmup"}
_OF_ENTRY = _OF_MODEL | {"program", "example", "inputs", "outputs", "preload", "shadow", "deterministic", "cache"}
_OF_POOL = {"workers", "memory", "max_queue", "idle_s", "threads", "pin", "lane_bytes", "seed", "engine", "address"}
_KINDS: dict[str, type] = {
    "build": str, "program": str, "example": str, "weights": str, "device": str, "kwargs": dict, "args": list, "preload": bool,
    "shadow": str, "combine": str, "deterministic": bool,
    "inputs": list, "outputs": list, "versions": dict,
}  # fmt: skip
_WORDS = {str: "a text", dict: "a table", list: "a list", bool: "true or false"}
_LARGEST_FILE = 16 << 20
_EXAMPLE = '[models.mlp]\nbuild = "my_models:build_mlp"'


@dataclass(frozen=True)
class Entry:
    """One version of one model; `key` is its name in the pool."""

    name: str
    version: str
    key: str
    model: Model
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    preload: bool = True  # it has to be loaded before the server is ready
    shadow: str = ""  # a model that is asked the same, for nobody
    cache_bytes: int = 0  # for answers that are given again to the same request


@dataclass(frozen=True)
class ModelsFile:
    """All that MODELS.toml says. `Pool(file.models, **file.pool)` runs it."""

    entries: tuple[Entry, ...]
    virtual: tuple[VirtualModel, ...] = ()
    pool: dict[str, Any] = field(default_factory=dict)

    @property
    def models(self) -> dict[str, Model]:
        return {entry.key: entry.model for entry in self.entries}


def read_models(path: str | Path) -> ModelsFile:
    """Raises UnreadableInput if it is not TOML, UsageError if an entry is wrong."""
    path = Path(path)
    data = _toml(path)
    _check_keys(str(path), data, {"models", "pool"})
    models = _table(str(path), data.get("models", {}), "models")
    if not models:
        raise UsageError(f"{path} names no models", next=(f"begin with:\n{_EXAMPLE}",))
    tables = {name: _table(str(path), said, f"models.{name}") for name, said in models.items()}
    entries = [entry for name, said in tables.items() if not _is_virtual(said) for entry in _entries(path, name, said)]
    virtual = [_virtual(path, name, said) for name, said in tables.items() if _is_virtual(said)]
    _check_named(str(path), entries, virtual)
    pool = _table(str(path), data.get("pool", {}), "pool")
    _check_keys(f"{path}: [pool]", pool, _OF_POOL)
    return ModelsFile(tuple(entries), tuple(virtual), pool)


def read_folder(folder: str | Path) -> ModelsFile:
    """`NAME/VERSION/model.pt2`, or `NAME/VERSION/model.toml`, which says what a table of MODELS.toml says."""
    folder = Path(folder)
    entries = []
    for path in sorted(folder.glob("*/*/model.pt2")) + sorted(folder.glob("*/*/model.toml")):
        said = {"program": path.name} if path.suffix == ".pt2" else _toml(path)
        name, version = path.parts[-3:-1]
        entries.append(_entry(path.parent, str(path), name, version, f"{name}:{version}", _checked(str(path), name, said, _OF_ENTRY)))
    places = [(entry.name, entry.version) for entry in entries]
    if twice := next((place for place in places if places.count(place) > 1), ()):
        raise UsageError(f"{folder}: there are a model.pt2 and a model.toml for {':'.join(twice)}; only one of them can be the model")
    _check_apart(str(folder), entries, ())
    if not entries:
        raise UnreadableInput(f"{folder} holds no models", why="models are looked for in NAME/VERSION/model.pt2 and model.toml below it")
    return ModelsFile(tuple(entries))


def _toml(path: Path) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            raw = file.read(_LARGEST_FILE + 1)
        if len(raw) > _LARGEST_FILE:
            raise UnreadableInput(f"{path} is larger than a models file can be", next=("give the path of MODELS.toml",))
        return tomllib.loads(raw.decode("utf-8"))
    except OSError as error:
        raise UnreadableInput(f"{path} cannot be read", why=error.strerror or str(error), next=("check the path",)) from None
    except (ValueError, RecursionError) as error:  # not UTF-8 either
        why = str(error) if isinstance(error, ValueError) else "it is nested too deep"
        raise UnreadableInput(f"{path} is not valid TOML: {why}", next=(f"it looks like this:\n{_EXAMPLE}",)) from None


def _entries(path: Path, name: str, said: Any) -> list[Entry]:
    """One, or one per version; what a version does not say is as the model says it."""
    where = f"{path}: [models.{name}]"
    common = _checked(where, name, said, _OF_ENTRY | {"versions"})
    versions = common.pop("versions", {})
    if not versions:
        return [_entry(path.parent, where, name, "1", name, common)]
    found = []
    for version, own in versions.items():
        where = f"{path}: [models.{name}.versions.{version}]"
        own = _checked(where, version, _table(str(path), own, f"models.{name}.versions.{version}"), _OF_ENTRY)
        found.append(_entry(path.parent, where, name, version, f"{name}:{version}", {**common, **own}))
    return found


def _checked(where: str, name: str, said: Mapping[str, Any], known: set[str]) -> dict[str, Any]:
    """What was said of a model, or of a version of it, once its name, its keys and the kinds of their values are right."""
    check_name(where, name)
    _check_keys(where, said, known)
    return dict(said)


def _entry(folder: Path, where: str, name: str, version: str, key: str, said: Mapping[str, Any]) -> Entry:
    if ("build" in said) == ("program" in said):
        raise UsageError(f"{where} needs either build or program", next=('build = "my_models:build_mlp"', 'or program = "mlp.pt2"'))
    build = said.get("program", said.get("build", ""))
    if "program" in said and not build.endswith(".pt2"):
        raise UsageError(f"{where}: program is {build!r}; it must be a .pt2 file")
    given = {key: value for key, value in said.items() if key in _OF_MODEL}
    given["build"] = str(folder / build) if build.endswith(".pt2") else build
    if "weights" in said:
        given["weights"] = str(folder / said["weights"])
    if "args" in said:
        given["args"] = tuple(said["args"])
    example = read_example(folder / said["example"]) if "example" in said else {}
    if example:
        given["warmup"] = tuple(example.values())
    model = Model(**given)
    model.check(key)
    inputs, outputs = (_specs(where, what, said.get(what, [])) for what in ("inputs", "outputs"))
    cache = parse_bytes(said["cache"], f"{where}: cache") if "cache" in said else 0
    if cache and not said.get("deterministic"):
        steps = ("say deterministic = true where it is, or no cache",)
        raise UsageError(f"{where}: answers can be kept only of a model that is deterministic", next=steps)
    entry = Entry(name, version, key, model, inputs, outputs, said.get("preload", True), said.get("shadow", ""), cache)
    return described(entry, tuple(example))


def _virtual(path: Path, name: str, said: Mapping[str, Any]) -> VirtualModel:
    where = f"{path}: [models.{name}]"
    said = _checked(where, name, said, {"split", "ensemble", "combine", "inputs", "outputs", "shadow"})
    inputs, outputs = (_specs(where, what, said.get(what, [])) for what in ("inputs", "outputs"))
    return VirtualModel(name, *_read_targets(where, said), inputs, outputs, said.get("shadow", ""))


def _check_named(where: str, entries: Iterable[Entry], virtual: Iterable[VirtualModel]) -> None:
    _check_apart(where, entries, virtual)
    real = {name for entry in entries for name in (entry.name, f"{entry.name}:{entry.version}")}
    for model in virtual:
        for name in (*model.targets, *([model.shadow] if model.shadow else [])):
            if name not in real:
                there = f"there are {', '.join(sorted(real))}" if real else "there is none; a split or an ensemble is made of others"
                raise UsageError(f"model {model.name!r} names {name!r}, which is not a model", why=there)
    for entry in entries:
        if entry.shadow and (entry.shadow not in real or entry.shadow.rpartition(":")[0] == entry.name or entry.shadow == entry.name):
            raise UsageError(f"{where}: [models.{entry.name}]: its shadow is {entry.shadow!r}, which is not another model")


def _check_apart(where: str, entries: Iterable[Entry], virtual: Iterable[VirtualModel]) -> None:
    """Raise where NAME or NAME:VERSION could mean two models."""
    owners: dict[str, str] = {}
    named: tuple[Entry | VirtualModel, ...] = (*entries, *virtual)
    for own in named:
        for address in (own.name, f"{own.name}:{own.version}"):
            if owners.setdefault(address, own.name) != own.name:
                why = f"a model is found by NAME and by NAME:VERSION, and here these are the same for {owners[address]!r} and {own.name!r}"
                raise UsageError(f"{where}: {address!r} would be two models", why=why, next=("give one of them a name without a colon",))


def described(entry: Entry, example_names: tuple[str, ...] = ()) -> Entry:
    """The entry with the inputs and outputs it does not declare, taken from the model's program or an example input."""
    inputs, outputs, model = entry.inputs, entry.outputs, entry.model
    if model.is_program:
        takes, gives = specs_of_program(str(model.build))
        inputs, outputs = inputs or takes, outputs or gives
    if not inputs and model.warmup is not None:
        inputs = specs_of_example(model.warmup, model.max_batch, example_names)
    return replace(entry, inputs=inputs, outputs=outputs)


def _specs(where: str, what: str, said: list[Any]) -> tuple[TensorSpec, ...]:
    specs = tuple(_spec(f"{where}: {what}[{i}]", tensor) for i, tensor in enumerate(said))
    names = [spec.name for spec in specs]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"{where}: two {what} are called {name!r}")
    return specs


def _spec(where: str, said: Any) -> TensorSpec:
    example = '{ name = "x", datatype = "FP32", shape = [-1, 784] }'
    if not isinstance(said, dict) or said.keys() != {"name", "datatype", "shape"}:
        raise UsageError(f"{where} must have a name, a datatype and a shape, and nothing else", next=(example,))
    name, datatype, shape = said["name"], said["datatype"], said["shape"]
    if not isinstance(name, str) or not name:
        raise UsageError(f"{where}: its name is {name!r}; it must be a word", next=(example,))
    if datatype not in DATATYPES:
        raise UsageError(f"{where}: there is no datatype {datatype!r}", why=f"there are {', '.join(DATATYPES)}", next=(example,))
    if not isinstance(shape, list) or any(type(size) is not int or size < -1 for size in shape):
        raise UsageError(f"{where}: its shape is {shape!r}; it must be a list of sizes, -1 for any", next=(example,))
    return TensorSpec(name, datatype, tuple(shape))


def check_name(where: str, name: str) -> None:
    """A name that stands in a path and in logs: no control characters, not too long."""
    if not name or len(name) > 200 or not name.isprintable() or name in (".", ".."):
        raise UsageError(f"{where}: {name[:80]!r} cannot be a name", next=("use letters, digits, - and _",))


def _table(path: str, value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UsageError(f"{path}: {name} is {value!r}; it must be a table", next=(f"write it as [{name}]",))
    return value


def _check_keys(where: str, said: Mapping[str, Any], known: set[str]) -> None:
    for key in said:
        if key not in known:
            close = difflib.get_close_matches(key, known, 1)
            steps = (f"did you mean {close[0]!r}?",) if close else ()
            raise UsageError(f"{where}: there is no {key!r}", why=f"there are {', '.join(sorted(known))}", next=steps)
        if key in _KINDS and not isinstance(said[key], _KINDS[key]):
            raise UsageError(f"{where}: {key} is {said[key]!r}; it must be {_WORDS[_KINDS[key]]}")


@dataclass(frozen=True)
class VirtualModel:
    """A model that is made of others: a split by weight (A/B test, canary), or an ensemble. `targets` are models by name, or by
    NAME:VERSION, with their weights; with `combine`, all of them are asked."""

    name: str
    targets: Mapping[str, float]
    combine: str = ""
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    shadow: str = ""
    version: str = "1"


def _is_virtual(said: Mapping[str, Any]) -> bool:
    return "split" in said or "ensemble" in said


def _read_targets(where: str, said: Mapping[str, Any]) -> tuple[dict[str, float], str]:
    """The targets, and how their outputs are combined; empty for a split."""
    if "split" in said and "ensemble" in said:
        raise UsageError(f"{where} is a split or an ensemble, not both")
    if "split" in said:
        if "combine" in said:
            raise UsageError(f"{where}: combine belongs to an ensemble; of a split, one model answers")
        weights, example = said["split"], "split = { champion = 0.9, challenger = 0.1 }"
        if not isinstance(weights, dict) or not weights:
            raise UsageError(f"{where}: split is {weights!r}; it must be a table of weights", next=(example,))
        return checked_weights(f"{where}: ", weights, example), ""
    listed, combine = said["ensemble"], said.get("combine", "mean")
    is_list = isinstance(listed, list) and all(isinstance(name, str) for name in listed)
    if not is_list or len(listed) < 2 or len(set(listed)) < len(listed):
        raise UsageError(f"{where}: ensemble is {listed!r}; it must be a list of two models or more", next=('ensemble = ["a", "b"]',))
    if combine not in MERGES:
        raise UsageError(f"{where}: there is no way to combine called {combine!r}", why=f"there are {', '.join(MERGES)}")
    return dict.fromkeys(listed, 1.0), combine


# What a model takes and gives, as far as its `.pt2` program or an example input says so: files are read, nothing runs.
Specs = tuple[TensorSpec, ...]
_SCHEMA = 8  # the major version of the program's description that is understood; others say nothing
_LARGEST = 256 << 20
_DATATYPES = {
    1: "UINT8", 2: "INT8", 3: "INT16", 4: "INT32", 5: "INT64", 6: "FP16", 7: "FP32", 8: "FP64", 12: "BOOL", 13: "BF16",
    28: "UINT16", 34: "UINT32", 35: "UINT64",
}  # fmt: skip
_OF_TORCH = {"bfloat16": "BF16", "bool": "BOOL", "float16": "FP16", "float32": "FP32", "float64": "FP64"}


def specs_of_program(path: str | Path) -> tuple[Specs, Specs]:
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
        return _named_specs(names[0], inputs), _named_specs(names[1], outputs)
    except (OSError, zipfile.BadZipFile, ValueError, KeyError, TypeError, IndexError, StopIteration, RecursionError, NotImplementedError):
        return (), ()  # the worker that loads it will say what is wrong with it


def specs_of_example(example: Any, max_batch: int, names: Iterable[str] = ()) -> Specs:
    """The specs of an example (an array or tensor, or a tuple of them); for models with batches, the first dimension is free."""
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
            arrays = {name: loaded[name] for name in loaded.files}
        if other := [name for name, array in arrays.items() if not isinstance(array, np.ndarray)]:
            raise ValueError(f"{other[0]} in it is not an array")  # a checkpoint is a zip file, too
        return arrays
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
    """Raises KeyError for anything but a tensor of a type that the protocol knows."""
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


def _named_specs(names: list[str], found: list[tuple[str, str, tuple[int, ...]]]) -> Specs:
    if len(names) != len(found):
        return ()
    return tuple(TensorSpec(name, datatype, shape) for name, (_, datatype, shape) in zip(names, found))


def _datatype(dtype: Any) -> str:
    """The datatype of a numpy dtype, or of a torch dtype, which is known by its name."""
    if isinstance(dtype, np.dtype):
        return "BYTES" if dtype.kind in "SUO" else NAMES.get(dtype.newbyteorder("<"), "")
    name = str(dtype).removeprefix("torch.")
    return _OF_TORCH.get(name) or (name.upper() if name.upper() in NAMES.values() else "")
