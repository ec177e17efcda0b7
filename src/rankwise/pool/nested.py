"""Values inside values: the containers that outputs come in, taken apart and put together again as what they were."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

from rankwise.pool.sameness import is_same

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
    """The same structure, with what `act` makes of everything that is no container."""
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
    """The parts as one value: arrays along their rows, and the rest, which has to be the same in all of them. Raises Uneven."""
    first = parts[0]
    if is_array(first):
        if not all(map(is_array, parts)):
            raise Uneven
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
