"""Nested inputs and outputs as nodes that `marshal` can carry, with the arrays' bytes put elsewhere; and functions for containers.

A node is a tuple whose first item says what it is:
("T", dtype, shape, place) a tensor, ("N", dtype, shape, place) an array, ("=", value) a plain value, ("P", size, place) a pickled one,
("R", size, place) a pickled one that may have rows, ("[", nodes), ("(", nodes) and ("{", keys, nodes) the containers, ("S", size, place) a
container of another class with its items as nodes (or a tensor that is not plain memory), ("M", size, place) a node too long for a message.
A place is the bytes themselves, or what the packer's `put` returned."""

from __future__ import annotations

import copy
import importlib
import io
import marshal
import operator
import os
import pickle
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import cache, lru_cache
from typing import Any

import numpy as np

from rankwise.pool.errors import Unsendable

# Values whose exact type and bits `marshal` writes. Checked by exact type: it would take a numpy scalar for a bytes object.
PLAIN = frozenset((type(None), bool, int, float, complex, str, bytes))
ARRAYS = frozenset((np.ndarray, np.memmap))  # np.memmap's numbers are still in a file; other subclasses mean more than numbers
# Both libraries know these, under the same name and with the same bytes.
SHARED = (
    *("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
# Only torch has these types; numpy holds their bytes as integers of the same width.
TORCH_ONLY: dict[str, np.dtype[Any]] = {
    "bfloat16": np.dtype("int16"),
    "complex32": np.dtype("int32"),
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"), np.dtype("int8")),
}
# "raw" is for bytes that are not an array.
NUMPY: dict[str, np.dtype[Any]] = {name: np.dtype(name) for name in SHARED} | TORCH_ONLY | {"raw": np.dtype("uint8")}
_NAME_OF_CHAR = {np.dtype(name).char: name for name in SHARED} | {"q": "int64", "Q": "uint64", "l": "int64", "L": "uint64"}


def name_of_numpy(dtype: np.dtype[Any]) -> str:
    """`float32` for numpy's float32; empty if torch does not have the type, or not in this byte order."""
    # By its letter: looking a dtype up in a dict takes ten times as long.
    return _NAME_OF_CHAR.get(dtype.char, "") if dtype.isnative else ""


def torch_module() -> Any | None:
    """torch, if the process has imported it: the pool's parent side never does so by itself."""
    return sys.modules.get("torch")


imports_torch = False  # whether an arriving tensor makes this process import torch; set where tensors are passed on to others


def torch_for_tensors() -> Any | None:
    """torch, if a result should become a tensor; it may be imported for that."""
    return importlib.import_module("torch") if imports_torch else torch_module()


@cache
def torch_dtype(name: str) -> Any:
    return getattr(sys.modules["torch"], name)


@cache
def name_of_torch(dtype: Any) -> str:
    """`float32` for torch.float32; empty for types that cannot travel as plain bytes (quantized types)."""
    name = str(dtype).removeprefix("torch.")
    return name if name in NUMPY else ""


Node = tuple[Any, ...]
# The node of the inputs, its bytes, what it holds of the arena, whether tensors come back.
EncodedInputs = tuple[Any, int, Sequence[Any], bool]
# Of an order: rows (0: it runs by itself), inputs, deadline on the machine's monotonic clock, seed of its random numbers.
Part = tuple[int, Node, float | None, int | None]
INLINE_BYTES = 8192  # up to here, an array travels in the message: cheaper than the page faults of a lane
# Up to here, copying an array is cheaper than keeping track of who still uses it: those of a chunk travel side by side on a lane.
COPIED_BYTES = 64 << 10
ALIGNED = 64  # bytes, where torch's allocator lets tensors begin
LANE_SHARE = 32  # a byte on a lane costs so much less than one in a message; a megabyte is still too large to wait for others
_DEEPEST = 250  # containers within containers
_LONG = 32_000  # bytes of a node; beyond, it goes where the arrays go
Put = Callable[[Any, Any], Any]
Get = Callable[[Any, str, tuple[int, ...], bool], Any]


def fitted(node: Node, put: Put) -> tuple[Node, int]:
    """A node that fits into a message, and about how many bytes it takes there. A node that is too long is stored where arrays are."""
    items = node[1] if node[0] == "(" else (node,)
    if len(items) == 1 and items[0][0] in ("T", "N"):
        place = items[0][3]
        return node, len(place) if type(place) is bytes else 100
    data = marshal.dumps(node, 2)
    if len(data) <= _LONG:
        return node, len(data)
    array = np.frombuffer(data, np.uint8)
    return ("M", len(data), put(array, array)), 100


def pack(value: Any, put: Put, depth: int = 0) -> Node:
    """Turn a value into a node. `put(array, owner)` stores a numpy array, contiguous or not, and returns its place; the owner is the tensor
    or array that it came from. Raises Unsendable."""
    kind, torch = type(value), torch_module()
    if torch is not None and kind is torch.Tensor:
        return _pack_tensor(value, put, torch)
    if kind in PLAIN:
        return ("=", value)
    if kind in ARRAYS:
        if value.dtype.name == "bfloat16":  # numpy gets this type from ml_dtypes
            return ("N", "bfloat16", value.shape, put(value.view(TORCH_ONLY["bfloat16"]), value))
        name = name_of_numpy(value.dtype)
        return ("N", name, value.shape, put(value, value)) if name else _pickled(value, put)
    if depth > _DEEPEST:  # or it contains itself; marshal, and Python's own stack, do not go much deeper
        raise Unsendable(f"{kind.__name__}: it is nested more than {_DEEPEST} deep")
    if kind is tuple or kind is list:
        return ("(" if kind is tuple else "[", [pack(item, put, depth + 1) for item in value])
    if torch is not None and isinstance(value, torch.Tensor):  # a Parameter, say
        return _pack_tensor(value, put, torch)
    if kind is dict and all(type(key) in PLAIN for key in value):
        return ("{", list(value), [pack(item, put, depth + 1) for item in value.values()])
    if isinstance(value, (dict, tuple, list)):
        return _pack_container(value, put, depth)
    return _pickled(value, put)


def unpack(node: Node, get: Get) -> Any:
    """`get(place, dtype, shape, as_tensor)` gives the tensor or array that lies at a place."""
    tag = node[0]
    if tag == "T" or tag == "N":
        return get(node[3], node[1], node[2], tag == "T")
    if tag == "(":
        items = node[1]
        return (unpack(items[0], get),) if len(items) == 1 else tuple([unpack(item, get) for item in items])
    if tag == "=":
        return node[1]
    if tag == "[":
        return [unpack(item, get) for item in node[1]]
    if tag == "{":
        return {key: unpack(item, get) for key, item in zip(node[1], node[2])}
    raw = get(node[2], "raw", (node[1],), False)
    if tag == "P" or tag == "R":
        return unpickled(lambda: pickle.loads(raw))
    inner = marshal.loads(raw)
    if tag == "M":
        return unpack(inner, get)
    unpickler = pickle.Unpickler(io.BytesIO(inner[0]))
    unpickler.persistent_load = [unpack(item, get) for item in inner[1]].__getitem__  # type: ignore[method-assign]
    return unpickled(unpickler.load)


def unpickled(load: Callable[[], Any]) -> Any:
    """Call `load`. It may import a script that reads its arguments, and exits if they are not its own. In one of our threads that would go
    unnoticed, and the answer would be asked for again and again."""
    try:
        return load()
    except SystemExit as error:
        if threading.current_thread() is threading.main_thread():  # a signal handler may have raised it
            raise
        raise ImportError(f"a module that it needs ends the program when it is imported here: SystemExit: {error}") from error


def as_array(data: Any, dtype: str, shape: tuple[int, ...], as_tensor: bool) -> Any:
    """A tensor or array over `data`, which offers a writable buffer of exactly its bytes."""
    return given(np.ndarray(shape, NUMPY[dtype], data), dtype, as_tensor)


def given(array: np.ndarray[Any, Any], dtype: str, as_tensor: bool) -> Any:
    """The same numbers as a tensor, if torch is there, otherwise as an array of a type that numpy has."""
    torch = torch_for_tensors() if as_tensor else None
    if dtype not in TORCH_ONLY:  # through numpy, because torch's own frombuffer and view take twice as long
        return array if torch is None else torch.from_numpy(array)
    if torch is not None:  # the array holds its bytes as integers
        return torch.from_numpy(array.reshape(-1)).view(torch_dtype(dtype)).view(array.shape)
    if dtype != "bfloat16":
        raise TypeError(f"a result of type {dtype} needs torch: import it before using the pool")
    return (array.astype(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)  # holds every value of bfloat16


def _pack_tensor(tensor: Any, put: Put, torch: Any) -> Node:
    try:  # refuses whatever is not plain memory of this process: gradients, devices, lazy conjugates, sparse and quantized tensors
        array = tensor.numpy()
    except (RuntimeError, TypeError):
        name = name_of_torch(tensor.dtype)
    else:
        return ("T", name_of_numpy(array.dtype), array.shape, put(array, tensor))
    try:
        tensor = tensor.detach().cpu()
    except RuntimeError as error:  # it has no numbers: it is on the device "meta", say
        raise Unsendable(f"{type(tensor).__name__}: {error}") from error
    if not name or tensor.layout is not torch.strided or tensor.is_nested:
        return _pack_shell(tensor, [], put, 0)  # not pickled as other objects are: it has rows, which cannot be cut or joined
    plain, shape = tensor.resolve_conj().resolve_neg(), tuple(tensor.shape)
    if name in TORCH_ONLY:  # as integers of the same width; a single number has no view of another type
        plain = plain.reshape(shape or (1,)).view(torch_dtype(TORCH_ONLY[name].name)).reshape(shape)
    try:
        array = plain.numpy()
    except RuntimeError as error:  # a subclass that is made of other tensors (MaskedTensor)
        raise Unsendable(f"{type(tensor).__name__}: {error}") from error
    return ("T", name, shape, put(array, plain))


def _pack_container(value: Any, put: Put, depth: int) -> Node:
    """A named tuple, an OrderedDict or their like: pickled by its own rules, but its items travel as in a plain container: a
    pickled tensor could only be read where torch is, and would be a tensor where an array is wanted."""
    items = [item for item in (value.values() if isinstance(value, dict) else value) if type(item) not in PLAIN]
    return _pack_shell(value, items, put, depth) if items else _pickled(value, put)


def _pack_shell(value: Any, items: list[Any], put: Put, depth: int) -> Node:
    places = {id(item): i for i, item in enumerate(items)}  # each item is replaced by its number
    pickler = _Pickler(file := io.BytesIO(), protocol=pickle.HIGHEST_PROTOCOL)
    pickler.persistent_id = lambda found: places.get(id(found))  # type: ignore[method-assign]
    try:
        pickler.dump(value)
    except Exception as error:  # its class was made inside a function, say
        raise Unsendable(f"{type(value).__name__}: {error}") from error
    array = np.frombuffer(marshal.dumps((file.getvalue(), [pack(item, put, depth + 1) for item in items]), 2), np.uint8)
    return ("S", len(array), put(array, array))


def stays_tensor(dtype: str, wants_tensors: bool) -> bool:
    """Whether a tensor in a result stays a tensor: if tensors are wanted, or if numpy has no type for it."""
    return wants_tensors or (dtype in TORCH_ONLY and dtype != "bfloat16")


def _pickled(value: Any, put: Put) -> Node:
    pickler = _Pickler(file := io.BytesIO(), protocol=pickle.HIGHEST_PROTOCOL)
    try:
        pickler.dump(value)
    except Exception as error:  # its __reduce__ may raise anything
        raise Unsendable(f"{type(value).__name__}: {error}") from error
    array = np.frombuffer(file.getbuffer(), np.uint8)
    return ("P" if isinstance(value, np.generic) else "R", len(array), put(array, array))


class _Pickler(pickle.Pickler):
    """Pickles an object of any class. A tensor in it travels by its own numbers, in ordinary memory: pickle itself takes along all the
    memory that the tensor is a part of (a graph's, that of its whole dataset), and leaves it on its GPU."""

    def reducer_override(self, value: Any) -> Any:
        main = sys.modules["__main__"]
        if isinstance(value, type) and value.__module__ == "__main__" and not os.path.isfile(getattr(main, "__file__", None) or ""):
            is_of_here = value.__qualname__.partition(".")[0] in vars(main)  # otherwise it came from the caller, who has it
            return _of_main, (value.__qualname__, _by_value(value) if is_of_here else b"")
        torch = torch_module()
        if torch is None or type(value) is not torch.Tensor or value.layout is not torch.strided or value.is_nested or value.is_meta:
            return NotImplemented
        if value.is_cpu and value.untyped_storage().nbytes() <= value.nbytes:
            return NotImplemented
        return (value.detach().clone() if value.is_cpu else value.detach().cpu()).__reduce_ex__(pickle.HIGHEST_PROTOCOL)


@lru_cache(maxsize=256)
def _by_value(kind: type) -> bytes:
    """A class of a notebook, a prompt or an archive, where no worker could import it."""
    try:
        import cloudpickle  # type: ignore[import-untyped,unused-ignore]
    except ImportError:
        steps = 'put it into a module, or: pip install "rankwise[notebook]"'
        raise Unsendable(f"workers cannot import it, because it is not defined in a file; {steps}") from None
    return bytes(cloudpickle.dumps(kind))


def _of_main(name: str, data: bytes) -> Any:
    try:
        return operator.attrgetter(name)(sys.modules["__main__"])
    except AttributeError:
        if not data:
            raise
        return pickle.loads(data)


def each_node(node: Node, act: Callable[[Node], Node]) -> Node:
    """The same node with `act` applied to everything in it that is not a container."""
    return (*node[:-1], [each_node(item, act) for item in node[-1]]) if node[0] in ("[", "(", "{") else act(node)


def described(node: Node) -> str:
    """Inputs in few words, for findings: what they are made of, never all of them."""
    return shape_of(node) + (f" (first bytes {_first_bytes(node)})" if _first_bytes(node) else "")


def shape_of(node: tuple[Any, ...]) -> str:
    tag = node[0]
    if tag in ("T", "N"):
        return f"{node[1]}{list(node[2])}"
    if tag == "=":
        return repr(node[1])[:80]
    if tag in ("[", "("):
        return ", ".join(shape_of(item) for item in node[1])[:300]
    if tag == "{":
        return "{" + ", ".join(f"{key!r}: {shape_of(item)}" for key, item in zip(node[1], node[2]))[:300] + "}"
    return f"an object of {node[1]} bytes"


def _first_bytes(node: tuple[Any, ...]) -> str:
    if node[0] in ("T", "N"):
        return node[3][:16].hex(" ", 4) if type(node[3]) is bytes else ""
    return next((found for item in node[-1] if (found := _first_bytes(item))), "") if node[0] in ("[", "(", "{") else ""


EVEN, UNEVEN = "E", "U"  # requests or results that are arrays of one shape and type, and any others


def given_copies(dtype: str, shape: tuple[int, ...], count: int, data: Any, as_tensors: bool, offset: int = 0) -> list[Any]:
    """The arrays that were sent as one, each copied: keeping one does not keep all in memory, and writing to one changes no other."""
    whole: np.ndarray[Any, Any] = np.ndarray((count, *shape), NUMPY[dtype], data, offset)
    arrays = [whole[i, ...].copy() for i in range(count)] if not shape else list(map(np.ndarray.copy, whole))
    torch = torch_for_tensors() if as_tensors else None
    return arrays if torch is None else list(map(torch.from_numpy, arrays))


def exact_bytes(value: Any) -> bytes:
    """Plain values in tuples, lists and dicts as bytes: equal exactly where values, types and order are."""
    return marshal.dumps(value, 2)  # later versions write a string in two ways, by whether it is interned


def is_same(a: Any, b: Any) -> bool:
    """Whether two objects are equal to the bit; False where that cannot be decided."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    try:
        return exact_bytes(a) == exact_bytes(b) if type(a) in PLAIN else _content(a) == _content(b)
    except Exception:  # one of them cannot be pickled
        return False


def _content(value: Any) -> bytes:
    """What an object is made of: each part in full, however often it was seen before, sets and arrays in one order."""
    pickler = pickle.Pickler(file := io.BytesIO(), protocol=pickle.HIGHEST_PROTOCOL)
    pickler.fast = True
    pickler.persistent_id = _in_one_order  # type: ignore[method-assign]
    pickler.dump(value)
    return file.getvalue()


def _in_one_order(value: Any) -> Any:
    if type(value) in (set, frozenset):
        return type(value).__name__, sorted(map(_content, value))
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return type(value).__name__, str(value.dtype), value.shape, value.tobytes()
    return None


class Uneven(Exception):
    """Parts that do not make one value, or a container that cannot be made again with other items."""


def items_of(value: Any) -> list[Any] | None:
    """What lies in a list, a tuple of any kind (named ones, and those made in C, such as torch's maximum with its index) or a dict of any
    kind; None for everything else."""
    if isinstance(value, dict):
        return list(value.values())
    if type(value) in (list, tuple) or (isinstance(value, tuple) and (hasattr(value, "_make") or hasattr(value, "n_sequence_fields"))):
        return list(value)
    return None


def like(value: Any, items: Iterable[Any]) -> Any:
    """The same container with other items in it. Raises Uneven if its class does not allow that."""
    if type(value) is dict:
        return dict(zip(value, items))
    if isinstance(value, dict):
        return _like_dict(value, list(items))
    return type(value)._make(items) if hasattr(value, "_make") else type(value)(items)


def _like_dict(value: Any, items: list[Any]) -> Any:
    """An OrderedDict, or the output of a transformer. Its other attributes are copied; Uneven if they hold arrays, which would be the old
    ones."""
    try:
        other = copy.copy(value)
        for key, item in zip(value, items):
            other[key] = item
        known = {id(item) for item in items}
        is_whole = list(map(id, other.values())) == list(map(id, items))
    except Exception:  # it is frozen, say
        raise Uneven from None
    if not is_whole or any(hasattr(held, "shape") and id(held) not in known for held in getattr(other, "__dict__", {}).values()):
        raise Uneven
    return other


def each_leaf(value: Any, act: Callable[[Any], Any]) -> Any:
    """The same structure, with `act` applied to everything that is not a container."""
    items = items_of(value)
    return act(value) if items is None else like(value, [each_leaf(item, act) for item in items])


def each_where_possible(value: Any, act: Callable[[Any], Any]) -> Any:
    """As `each_leaf`; if a container in it cannot be made again, `act` is applied to the whole value."""
    try:
        return each_leaf(value, act)
    except Uneven:
        return act(value)


def leaves(value: Any) -> list[Any]:
    items = items_of(value)
    return [value] if items is None else [leaf for item in items for leaf in leaves(item)]


def joined(parts: list[Any], is_array: Callable[[Any], bool], cat: Callable[[list[Any]], Any]) -> Any:
    """The parts as one value: arrays of one type along their rows, and the rest, which has to be the same in all of them. Raises Uneven."""
    first = parts[0]
    if is_array(first):
        if not all(is_array(part) and part.dtype == first.dtype and part.shape[1:] == first.shape[1:] for part in parts):
            raise Uneven  # `cat` itself would turn integers beside floating point into floating point
        return cat(parts)
    items = [items_of(part) for part in parts]
    if items[0] is None:
        if not all(is_same(first, part) for part in parts[1:]):
            raise Uneven
        return first
    if any(type(part) is not type(first) or len(part) != len(first) for part in parts):
        raise Uneven
    if isinstance(first, dict) and not all(is_same(list(first), list(part)) for part in parts):
        raise Uneven
    return like(first, [joined(list(column), is_array, cat) for column in zip(*items)])


def has_rows(value: Any, rows: int) -> bool:
    """Whether there are arrays in a result, and each has a row for each row that went in."""
    arrays = [leaf for leaf in leaves(value) if hasattr(leaf, "shape")]
    return bool(arrays) and all(len(array.shape) > 0 and array.shape[0] == rows for array in arrays)
