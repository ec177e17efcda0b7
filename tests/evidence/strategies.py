"""What files may hold: any JSON value, values of the wrong type and size, and any record of evidence that is well formed."""

from __future__ import annotations

import random
import typing
from dataclasses import fields
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from rankwise.evidence.collective_log import ORIGINS, CollectiveLog, Signature
from rankwise.evidence.records import Frame

# The same examples on every run, and no long search for the smallest failure on a busy machine.
FUZZ = settings(
    max_examples=50,
    deadline=None,
    derandomize=True,
    database=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
HUGE = [10**400, -(10**400), 2**63, 2**64, 1e308, -1e308, 2**31, -1]
HOSTILE = [
    "<script>alert(1)</script>",
    "\x1b]0;owned\x07\x1b[2J\x1b[31m",
    "\x9b31m\x9d0;owned\x9c",
    "\x00\x01\x08\r\n\x7f",
    "../../../../etc/passwd",
    "/etc/passwd",
    "file:///etc/passwd",
    "$(touch /tmp/owned)`id`",
    "{0.__class__.__mro__}%s%n",
    "\ud800x",
    "\u202e\u2066gnp.exe",
    "[bold red]x[/]",
    "A" * 100_000,
    "",
]

hostile_text = st.sampled_from(HOSTILE) | st.text(max_size=20)
scalars = st.none() | st.booleans() | st.integers() | st.sampled_from(HUGE) | st.floats(allow_nan=True, allow_infinity=True) | hostile_text
json_values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(hostile_text, inner, max_size=4), max_leaves=12
)


def deep(depth: int = 100_000) -> bytes:
    """JSON nested deeper than any stack."""
    return b"[" * depth + b"]" * depth


def records(cls: type) -> st.SearchStrategy[Any]:
    """Any well-formed record of this class, defaults not preferred."""
    hints = typing.get_type_hints(cls)
    return st.builds(cls, **{field.name: _values(hints[field.name]) for field in fields(cls)})


def _values(hint: Any) -> st.SearchStrategy[Any]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return st.sampled_from(arguments)
    if hint is CollectiveLog:
        return logs()
    if hint is float:
        return st.floats(allow_nan=False, allow_infinity=False)
    if hint is Any:
        return st.integers() | st.text(max_size=5)
    if origin is tuple and arguments[-1] is Ellipsis:
        return st.lists(_values(arguments[0]), max_size=1).map(tuple)
    if origin is tuple:
        return st.tuples(*map(_values, arguments))
    if origin is dict:
        return st.dictionaries(_values(arguments[0]), _values(arguments[1]), max_size=2)
    if origin is not None:  # X | None
        return st.one_of([_values(argument) for argument in arguments])
    if isinstance(hint, type) and hint.__module__.startswith("rankwise."):
        return records(hint)
    return {int: st.integers(-(2**63), 2**63 - 1), str: st.text(max_size=8), bool: st.booleans(), type(None): st.none()}[hint]


@st.composite
def logs(draw: st.DrawFn) -> CollectiveLog:
    log = CollectiveLog(is_partial=draw(st.booleans()))
    signatures = draw(st.lists(records(Signature), min_size=1, max_size=3))
    stacks = [(), *draw(st.lists(st.lists(records(Frame), min_size=1, max_size=2).map(tuple), max_size=2))]
    for seq in range(draw(st.integers(0, 6))):
        what, stack = draw(st.sampled_from(signatures)), draw(st.sampled_from(stacks))
        log.add(seq, what, draw(st.integers(0, 2**63)), draw(st.booleans()), stack, draw(st.sampled_from(ORIGINS)))
    return log


def some_record(cls: type, chance: random.Random) -> Any:
    """A well-formed record, drawn quickly: whole jobs are too large for hypothesis."""
    hints = typing.get_type_hints(cls)
    return cls(**{field.name: _some(hints[field.name], chance) for field in fields(cls)})


def _some(hint: Any, chance: random.Random) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return chance.choice(arguments)
    if hint is CollectiveLog:
        return _some_log(chance)
    if origin is tuple and arguments[-1] is Ellipsis:
        return tuple(_some(arguments[0], chance) for _ in range(chance.randrange(3)))
    if origin is tuple:
        return tuple(_some(argument, chance) for argument in arguments)
    if origin is dict:
        return {_some(arguments[0], chance): _some(arguments[1], chance) for _ in range(chance.randrange(3))}
    if origin is not None:  # X | None
        return _some(chance.choice(arguments), chance)
    if isinstance(hint, type) and hint.__module__.startswith("rankwise."):
        return some_record(hint, chance)
    plain = {
        int: lambda: chance.choice([0, 1, 7, chance.getrandbits(60)]),
        str: lambda: chance.choice([*HOSTILE[:-2], "", "all_reduce", "train.py"]),
        float: lambda: chance.choice([0.0, 1e-9, 1e300, 0.1]),
        bool: lambda: chance.random() < 0.5,
        type(None): lambda: None,
        Any: lambda: chance.choice([1, "x", None, [1, "y"]]),
    }
    return plain[hint]()


def _some_log(chance: random.Random) -> CollectiveLog:
    log = CollectiveLog(is_partial=chance.random() < 0.5)
    for seq in range(chance.randrange(4)):
        stack = tuple(some_record(Frame, chance) for _ in range(chance.randrange(2)))
        log.add(seq, some_record(Signature, chance), chance.getrandbits(60), chance.random() < 0.5, stack, chance.choice(ORIGINS))
    return log
