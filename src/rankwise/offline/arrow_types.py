"""Questions about Arrow's types that readers and writers ask."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from rankwise.offline.lazy import pa


@cache
def is_number(kind: Any) -> bool:
    """Asked of every column of every batch, so it is remembered."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def is_lists(kind: Any) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def is_tensors(column: Any) -> bool:
    """Whether it is an Arrow array of tensors of one shape."""
    return hasattr(column, "to_numpy_ndarray")


def tensors(column: Any) -> list[Any]:
    """One array per row, None for a null."""
    whole = iter(column.drop_null().to_numpy_ndarray())
    return [next(whole) if valid else None for valid in column.is_valid().to_pylist()]


def has_type(kind: Any, test: Callable[[Any], bool]) -> bool:
    """Whether a type, or one of those within it, is such a one."""
    inner = [kind.value_type] if pa.types.is_dictionary(kind) else [kind.field(i).type for i in range(kind.num_fields)]
    return test(kind) or any(has_type(each, test) for each in inner)


def with_inner(kind: Any, changed: Callable[[Any], Any]) -> Any:
    """The type with others in it, where it is one of lists, structs or maps."""
    types = pa.types
    if types.is_list(kind) or types.is_large_list(kind):
        return (pa.list_ if types.is_list(kind) else pa.large_list)(kind.value_field.with_type(changed(kind.value_type)))
    if types.is_fixed_size_list(kind):
        return pa.list_(kind.value_field.with_type(changed(kind.value_type)), kind.list_size)
    if types.is_struct(kind):
        return pa.struct([field.with_type(changed(field.type)) for field in kind])
    if types.is_map(kind):
        key, item = (field.with_type(changed(field.type)) for field in (kind.key_field, kind.item_field))
        return pa.map_(key, item, keys_sorted=kind.keys_sorted)
    return kind
