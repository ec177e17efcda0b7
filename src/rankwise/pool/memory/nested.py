"""Values inside values: the containers that outputs come in, taken apart, put together again, and compared bit by bit."""

from __future__ import annotations

import copy
import marshal
from collections.abc import Callable, Iterable
from typing import Any

# Values whose exact type and bits `marshal` writes. Checked by exact type: it would take a numpy scalar for a bytes object.
PLAIN = frozenset((type(None), bool, int, float, complex, str, bytes))


def bits_of(value: Any) -> bytes:
    """Of plain values in tuples, lists and dicts: the same bytes for the same values, in types and order as well."""
    return marshal.dumps(value, 2)  # later versions write a string in two ways, by whether it is interned


def is_same(a: Any, b: Any) -> bool:
    """Of any two objects; where nothing can be said, False."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if type(a) in PLAIN:
        return bits_of(a) == bits_of(b)
    try:
        return _is_alike(a, b)
    except Exception:  # whatever its comparison or its reduction does
        return False


def _is_alike(a: Any, b: Any) -> bool:
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(is_same, a, b)) and _has_same_state(a, b)
    if isinstance(a, dict):
        return len(a) == len(b) and all(map(is_same, a, b)) and all(map(is_same, a.values(), b.values())) and _has_same_state(a, b)
    if isinstance(a, (set, frozenset)):
        return len(a) == len(b) and _has_same_items(a, b)
    if hasattr(a, "tobytes"):  # an array, a scalar of numpy
        return bool(a.dtype == b.dtype and not a.dtype.hasobject and a.shape == b.shape and a.tobytes() == b.tobytes())
    if a != b:  # by its own word, and then by what it is made of
        return False
    reduced, other = a.__reduce_ex__(4), b.__reduce_ex__(4)
    if isinstance(reduced, str) or isinstance(other, str):  # found by its name
        return bool(reduced == other)
    return len(reduced) == len(other) and all(is_same(_listed(one), _listed(two)) for one, two in zip(reduced, other))


def _has_same_state(a: Any, b: Any) -> bool:
    """What a container of a class of its own knows besides its items."""
    return is_same(getattr(a, "__dict__", None), getattr(b, "__dict__", None))


def _has_same_items(a: Any, b: Any) -> bool:
    """In no order, but each has its partner."""
    if all(type(item) in PLAIN for item in a) and all(type(item) in PLAIN for item in b):
        return {bits_of(item) for item in a} == {bits_of(item) for item in b}
    left = list(b)
    return all(_is_taken_out(item, left) for item in a)


def _is_taken_out(item: Any, left: list[Any]) -> bool:
    for i, other in enumerate(left):
        if is_same(item, other):
            del left[i]
            return True
    return False


def _listed(item: Any) -> Any:
    """A reduction may bring its items as iterators."""
    return list(item) if hasattr(item, "__next__") else item


_MADE_IN_C = "n_sequence_fields"  # of tuples such as torch's maximum with its index


class Uneven(Exception):
    """Parts that do not make one value, or a container that cannot be made again with other items."""


def items_of(value: Any) -> list[Any] | None:
    """What lies in a list, a tuple of any kind (named ones, torch's own) or a dict of any kind; None for everything else."""
    if isinstance(value, dict):
        return list(value.values())
    if type(value) in (list, tuple) or (isinstance(value, tuple) and (_is_named(value) or hasattr(value, _MADE_IN_C))):
        return list(value)
    return None


def like(value: Any, items: Iterable[Any]) -> Any:
    """The same container with other items in it. Raises Uneven where its class does not allow that."""
    if type(value) is dict:
        return dict(zip(value, items))
    if isinstance(value, dict):
        return _like_dict(value, list(items))
    return type(value)._make(items) if _is_named(value) else type(value)(items)


def _like_dict(value: Any, items: list[Any]) -> Any:
    """An OrderedDict, the output of a transformer: whatever else it knows goes along, unless that is more arrays, which would be the
    old ones."""
    try:
        other = copy.copy(value)
        for key, item in zip(value, items):
            other[key] = item
        known = {id(item) for item in items}
        is_whole = list(map(id, other.values())) == list(map(id, items))
    except Exception:  # a frozen one, say
        raise Uneven from None
    if not is_whole or any(hasattr(held, "shape") and id(held) not in known for held in getattr(other, "__dict__", {}).values()):
        raise Uneven
    return other


def each_leaf(value: Any, act: Callable[[Any], Any]) -> Any:
    """The same structure, with `act` applied to everything that is not a container."""
    items = items_of(value)
    return act(value) if items is None else like(value, [each_leaf(item, act) for item in items])


def each_where_possible(value: Any, act: Callable[[Any], Any]) -> Any:
    """The same; a container that cannot be made again stays as it is."""
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
            raise Uneven  # `cat` itself would make floating point of integers that stand beside it
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


def _is_named(value: Any) -> bool:
    return hasattr(value, "_make")
