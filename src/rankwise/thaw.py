"""Frozen records to JSON and back, by their type hints; what does not fit its type raises ValueError."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import cache, partial
from typing import Any

Fit = Callable[[Any], Any]


def freeze(value: Any) -> Any:
    """Plain JSON values: records as objects without their defaults, tuples as lists."""
    if is_dataclass(value) and not isinstance(value, type):
        parts = vars(value)
        return {name: freeze(parts[name]) for name, default in _defaults_of(type(value)) if parts[name] != default}
    if isinstance(value, (list, tuple, set)):
        return [freeze(part) for part in value]
    if isinstance(value, dict):
        return {str(key): freeze(part) for key, part in value.items()}
    return value


def thaw(cls: type, data: Any) -> Any:
    """A record from its JSON form; unknown keys are ignored, missing ones take their default."""
    if not isinstance(data, dict):
        raise ValueError(f"expected an object for {cls.__name__}")
    fits = _fits_of(cls)
    try:
        return cls(**{name: fits[name](value) for name, value in data.items() if name in fits})
    except TypeError as error:
        raise ValueError(f"{cls.__name__} is incomplete: {error}") from error


@cache
def _defaults_of(cls: Any) -> list[tuple[str, Any]]:
    return [(f.name, f.default) for f in fields(cls)]  # a field without one has MISSING, which nothing equals


@cache
def _fits_of(cls: type) -> dict[str, Fit]:
    hints = typing.get_type_hints(cls)
    return {f.name: _fit_for(hints[f.name]) for f in fields(cls)}


@cache
def _fit_for(hint: Any) -> Fit:
    """The function that turns a JSON value into this type or raises ValueError; made once per type, as jobs may have thousands of ranks."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return lambda value: value
    if origin in (types.UnionType, typing.Union):
        fit = _fit_for(next(a for a in arguments if a is not type(None)))
        return (lambda value: None if value is None else fit(value)) if type(None) in arguments else fit
    if origin is typing.Literal:
        return partial(_one_of, arguments)
    if origin is tuple:
        return _tuple_fit(arguments)
    if origin is dict:
        return _dict_fit(*arguments)
    if is_dataclass(hint) and isinstance(hint, type):
        return partial(thaw, hint)
    return _float_fit if hint is float else _int_fit if hint is int else partial(_checked, hint)


def _one_of(allowed: tuple[Any, ...], value: Any) -> Any:
    if value not in allowed:
        raise ValueError(f"expected one of {allowed}, not {value!r}")
    return value


def _tuple_fit(arguments: tuple[Any, ...]) -> Fit:
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        fit = _fit_for(arguments[0])
        return lambda value: tuple([fit(part) for part in _checked(list, value)])
    fits = [_fit_for(argument) for argument in arguments]
    return lambda value: tuple([fit(part) for fit, part in zip(fits, _checked(list, value), strict=True)])


def _dict_fit(key_hint: Any, hint: Any) -> Fit:
    fit, key_of = _fit_for(hint), int if key_hint is int else str
    return lambda value: {key_of(key): fit(part) for key, part in _checked(dict, value).items()}


def _int_fit(value: Any) -> int:
    """Times, sizes and counts: a number beyond 64 bits is damage, and would not fit a float later."""
    if type(value) is not int or not -(1 << 63) <= value < 1 << 63:
        raise ValueError("expected a whole number of at most 64 bits")
    return value


def _float_fit(value: Any) -> float:
    try:
        return float(value) if type(value) is int else _checked(float, value)
    except OverflowError as error:
        raise ValueError("expected float, not a number beyond all floats") from error


def _checked(hint: Any, value: Any) -> Any:
    if not isinstance(value, hint):
        raise ValueError(f"expected {hint.__name__}, not {type(value).__name__}")
    return value
