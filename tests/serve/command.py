"""Starts `rankwise serve` as from the shell."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MODELS = """
[pool]
workers = 1
[models.moody]
build = "tests.serve.models:moody"
inputs = [{ name = "x", datatype = "FP32", shape = [-1, 4] }]
"""


@contextmanager
def started(*args: str | Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process, and where it listens; ended with SIGTERM, which has to work."""
    command = [sys.executable, "-m", "rankwise", "serve", *map(str, args), "--http", "127.0.0.1:0", "--grpc", ""]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = re.search(r"http on (\S+)", line)
            assert found, line + process.communicate(timeout=30)[1]
            yield process, found[1]
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
