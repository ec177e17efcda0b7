"""Frozen records to JSON and back, by their type hints; what does not fit its type raises ValueError."""

from __future__ import annotations

import types
import typing
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any

_MAX_DEPTH = 12


def freeze(value: Any) -> Any:
    """Plain JSON values: records as objects without their defaults, tuples as lists."""
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: freeze(getattr(value, f.name)) for f in fields(value) if getattr(value, f.name) != _default(f)}
    if isinstance(value, (list, tuple, set)):
        return [freeze(part) for part in value]
    if isinstance(value, dict):
        return {str(key): freeze(part) for key, part in value.items()}
    return value


def thaw(cls: type, data: Any, depth: int = 0) -> Any:
    """A record from its JSON form; unknown keys are ignored, missing ones take their default."""
    if not isinstance(data, dict) or depth > _MAX_DEPTH:
        raise ValueError(f"expected an object for {cls.__name__}")
    hints = _hints(cls)
    known = {f.name for f in fields(cls)}
    try:
        return cls(**{name: _fit(hints[name], value, depth + 1) for name, value in data.items() if name in known})
    except TypeError as error:
        raise ValueError(f"{cls.__name__} is incomplete: {error}") from error


@cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _default(field: Any) -> Any:
    return field.default if field.default is not MISSING else MISSING


def _fit(hint: Any, value: Any, depth: int) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in arguments:
            return None
        return _fit(next(a for a in arguments if a is not type(None)), value, depth)
    if origin is tuple:
        return _fit_tuple(arguments, value, depth)
    if origin is dict:
        if not isinstance(value, dict):
            raise ValueError("expected an object")
        return {_key(arguments[0], key): _fit(arguments[1], part, depth) for key, part in value.items()}
    if is_dataclass(hint) and isinstance(hint, type):
        return thaw(hint, value, depth)
    return _fit_plain(hint, value)


def _fit_tuple(arguments: tuple[Any, ...], value: Any, depth: int) -> Any:
    if not isinstance(value, list):
        raise ValueError("expected a list")
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return tuple(_fit(arguments[0], part, depth) for part in value)
    return tuple(_fit(argument, part, depth) for argument, part in zip(arguments, value, strict=True))


def _fit_plain(hint: Any, value: Any) -> Any:
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if (hint is int and isinstance(value, bool)) or not isinstance(value, hint):
        raise ValueError(f"expected {hint.__name__}, not {type(value).__name__}")
    return value


def _key(hint: Any, key: str) -> Any:
    return int(key) if hint is int else key
