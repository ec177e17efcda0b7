"""The process that carries messages between nodes ends with its watcher."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from rankwise.launch import nodes


def test_the_relay_ends_with_the_watcher(free_port: int) -> None:
    command = [sys.executable, Path(nodes.__file__).with_name("store_relay.py"), "127.0.0.1", str(free_port), "rankwise/x", "0"]
    relay = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    relay.stdin.close()

    assert relay.wait(20) == 0
