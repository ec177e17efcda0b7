"""Exceptions of DataLoader workers as they reach the rank: noted, but not for ever, and raised as they would be."""

from __future__ import annotations

import types
from typing import Any

import pytest

from rankwise.probe import worker_errors

TRACEBACK = (
    'Traceback:\n  File "/net/data.py", line 9, in __getitem__\n    x\n  File "/net/crop.py", line 3, in load\nValueError: bad sample\n'
)


class Wrapper:
    """As torch's ExceptionWrapper."""

    exc_type, exc_msg = ValueError, TRACEBACK

    def reraise(self) -> None:
        raise self.exc_type(self.exc_msg)


@pytest.fixture
def raised(monkeypatch: pytest.MonkeyPatch) -> Any:
    lines: list[dict[str, Any]] = []
    monkeypatch.setattr(worker_errors.journal, "write", lambda kind, **facts: lines.append({"k": kind, **facts}))
    monkeypatch.setattr(worker_errors.process, "is_recording", lambda: True)
    monkeypatch.setattr(worker_errors, "_times", {})

    def run(times: int, message: str = TRACEBACK) -> list[dict[str, Any]]:
        cls = type("Own", (Wrapper,), {"exc_msg": message, "reraise": Wrapper.reraise})
        worker_errors.attach(types.SimpleNamespace(ExceptionWrapper=cls))  # type: ignore[arg-type]
        for _ in range(times):
            with pytest.raises(ValueError, match=r"bad|other"):
                cls().reraise()
        return lines

    return run


def test_an_exception_is_noted_with_its_lines_innermost_first(raised: Any) -> None:
    frames = [["/net/crop.py", 3, "load"], ["/net/data.py", 9, "__getitem__"]]

    assert raised(1) == [{"k": "worker_raised", "type": "ValueError", "message": "ValueError: bad sample", "times": 1, "frames": frames}]


def test_one_that_comes_again_and_again_is_noted_ever_more_rarely(raised: Any) -> None:
    assert [line["times"] for line in raised(20)] == [1, 2, 3, 4, 8, 16]


def test_each_message_is_counted_for_itself(raised: Any) -> None:
    raised(3)

    assert raised(1, "ValueError: other")[-1]["times"] == 1


def test_outside_a_recording_nothing_is_noted(raised: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_errors.process, "is_recording", lambda: False)

    assert raised(2) == []
