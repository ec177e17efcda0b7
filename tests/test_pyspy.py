"""py-spy's answers, and the ways in which there is none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rankwise import pyspy
from rankwise.pyspy import NoStack, find_py_spy, read_threads


@pytest.mark.skipif(not find_py_spy(), reason="py-spy is not installed")
def test_a_process_that_is_gone_has_no_stack() -> None:
    pid = os.spawnlp(os.P_NOWAIT, "true", "true")
    os.waitpid(pid, 0)

    with pytest.raises(NoStack):
        read_threads(pid, 10.0)


@pytest.mark.parametrize(
    ("script", "kind"),
    [
        ("exec sleep 60", "is_slow"),
        ("echo 'Permission Denied' >&2; exit 1", "is_refused"),
        ("echo '{}'", ""),
        ("echo nothing", ""),
    ],
)
def test_why_there_is_no_stack_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, kind: str) -> None:
    program = tmp_path / "py-spy"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o700)
    monkeypatch.setattr(pyspy, "find_py_spy", lambda: str(program))
    with pytest.raises(NoStack) as caught:
        read_threads(os.getpid(), 0.5)

    assert [name for name in ("is_slow", "is_refused") if getattr(caught.value, name)] == ([kind] if kind else [])
