"""Wrappers around the user's and torch's functions: seen by nobody, in no traceback, and never in the way."""

from __future__ import annotations

import pickle
import sys
import traceback
import types
from pathlib import Path
from typing import Any

import pytest

from rankwise.probe import hooks


def double(number: int, *, plus: int = 0) -> int:
    """Twice as much."""
    if number < 0:
        raise ValueError("too small")
    return 2 * number + plus


def test_what_stands_before_and_after_a_call_gets_the_callers_frame_and_the_arguments() -> None:
    seen: list[Any] = []
    wrapped = hooks.wrap(
        double,
        lambda frame, *args, **kwargs: seen.append((frame.f_code.co_name, args, kwargs)),
        lambda frame, result, *args, **kwargs: seen.append((frame.f_code.co_name, result, args, kwargs)),
    )

    me = sys._getframe().f_code.co_name
    assert wrapped(2, plus=1) == 5
    assert seen == [(me, (2,), {"plus": 1}), (me, 5, (2,), {"plus": 1})]


def test_after_a_call_that_raised_only_the_surrounding_end_is_called() -> None:
    ends: list[Any] = []
    wrapped = hooks.wrap(double, after=lambda *_: ends.append("after"))
    surrounded = hooks.surround(double, lambda frame, args, kwargs: (args, kwargs), lambda *told: ends.append(told))

    for call in (wrapped, surrounded):
        with pytest.raises(ValueError, match="too small"):
            call(-1)
    assert surrounded(1) == 2

    (opened, result, error), then = ends
    assert (opened, result, type(error)) == (((-1,), {}), None, ValueError)
    assert then == (((1,), {}), 2, None)


@pytest.mark.parametrize("wrap", [hooks.wrap, lambda original: hooks.surround(original, lambda *_: None, lambda *_: None)])
def test_a_wrapper_looks_like_the_function_and_leaves_no_line_in_a_traceback(wrap: Any) -> None:
    wrapped = wrap(double)
    with pytest.raises(ValueError) as caught:
        wrapped(-1)

    assert (wrapped.__name__, wrapped.__doc__, wrapped.__module__, wrapped.__wrapped__) == ("double", "Twice as much.", __name__, double)
    assert not any(frame.filename == hooks.__file__ for frame in traceback.extract_tb(caught.value.__traceback__))


def test_a_wrapped_function_can_be_pickled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "double", hooks.wrap(double))

    assert pickle.loads(pickle.dumps(double)) is double


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    from rankwise.probe import journal

    lines: list[Any] = []
    monkeypatch.setattr(journal, "write", lambda kind, **facts: lines.append((kind, facts["what"], facts["error"])))
    monkeypatch.setattr(hooks, "_reported", set())
    return lines


def test_a_step_that_fails_is_told_once_and_never_raises(broken: list[Any]) -> None:
    guarded = hooks.guarded(double)

    assert [guarded(-1), guarded(-1), guarded(3)] == [None, None, 6]
    assert broken == [("broken", "double", "ValueError: too small")]


def test_a_part_attaches_at_once_where_its_module_is_imported_and_else_right_after(
    broken: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    attached: list[str] = []
    part = types.ModuleType("rankwise.probe.a_part")
    part.attach = lambda module: attached.append(f"{module.__name__} {module.value}")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "rankwise.probe.a_part", part)
    monkeypatch.setattr(hooks, "_after", {})
    (tmp_path / "awaited_module.py").write_text("value = 7\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [hooks._PostImport(), *sys.meta_path])
    there = types.ModuleType("module_that_is_there")
    there.value = 3  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "module_that_is_there", there)

    hooks.after("module_that_is_there", "a_part", "attach")
    hooks.after("awaited_module", "a_part", "attach")
    assert attached == ["module_that_is_there 3"]
    __import__("awaited_module")
    monkeypatch.delitem(sys.modules, "awaited_module")

    assert attached == ["module_that_is_there 3", "awaited_module 7"] and broken == [] and not hooks._after


def test_a_loader_without_room_for_attributes_goes_without() -> None:
    class Fixed:
        __slots__ = ()

        def exec_module(self, module: list[int]) -> None:
            module.append(1)

    loader, ran = Fixed(), []
    hooks._wrap_loader(loader, "x")
    loader.exec_module(ran)

    assert ran == [1]


def test_other_modules_are_left_to_the_real_finders() -> None:
    assert hooks._PostImport().find_spec("json") is None
