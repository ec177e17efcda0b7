"""Whether two values are the same in type and bits. `==` does not tell: to it 2, 2.0 and True are one, and so are 0.0 and -0.0."""

from __future__ import annotations

import marshal
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
