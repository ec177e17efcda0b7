"""Pools of tests that start warm (tests/warm.py) are as those that users start, and are found when a test leaves one behind."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests import warm
from tests.conftest import settled, warm_processes

IGNORED = [number for number in signal.valid_signals() if number not in (signal.SIGKILL, signal.SIGSTOP)]


def surroundings() -> Any:
    """What a worker finds itself in."""

    def look(_: Any) -> dict[str, Any]:
        above = psutil.Process().parent()
        assert above is not None and above.parent() is not None
        files = [f"/proc/self/fd/{fd}" for fd in range(256)]
        return {
            "environment": dict(os.environ),
            "folder": os.getcwd(),
            "path": sys.path,
            "arguments": len(sys.argv),
            "main": sys.modules["__main__"].__spec__ and sys.modules["__main__"].__spec__.name,
            "files": sorted(re.sub(r"/\d+/|:\[\d+\]", "", os.readlink(path)) for path in files if os.path.lexists(path)),
            "signals": [str(signal.getsignal(number)).partition(" at ")[0] for number in IGNORED],
            "threads": threading.active_count(),
            "session": os.getsid(0) == above.pid,
            "caller": above.parent().pid,
            "flags": str(sys.flags),
        }

    return look


def test_what_is_forked_is_as_what_is_started_and_is_seen_by_the_guard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    from rankwise.pool import Model, Pool
    from rankwise.pool.workers import fork_server

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OF_THIS_TEST", "set")
    seen = []
    for start in (fork_server.start_process, warm._Start(fork_server.start_process)):
        monkeypatch.setattr(fork_server, "start_process", start)
        with Pool({"look": Model(f"{__name__}:surroundings")}, workers=1) as pool:
            seen.append(pool.submit("look", 0).result(120))
            found = len(warm_processes())
    started, forked = seen

    assert forked == started
    assert started["caller"] == os.getpid() and started["environment"]["OF_THIS_TEST"] == "set"
    assert found == 2  # the fork server and its worker, while the pool was open
    assert not settled(lambda: [str(process) for process in warm_processes()])
