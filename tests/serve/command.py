"""Starts `rankwise serve` as from the shell."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
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
def started(*args: str | Path, is_log_read: bool = True) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process, and where it listens; ended with SIGTERM, which has to work. `process.stderr` is its log, or a pipe that fills up."""
    command = [sys.executable, "-m", "rankwise", "serve", *map(str, args), "--http", "127.0.0.1:0", "--grpc", ""]
    with (
        tempfile.NamedTemporaryFile("a") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log if is_log_read else subprocess.PIPE, text=True) as process,
    ):
        if is_log_read:
            process.stderr = open(log.name)  # noqa: SIM115  # closed with the process
        assert process.stdout is not None and process.stderr is not None
        try:
            line = process.stdout.readline()
            found = re.search(r"http on (\S+)", line)
            assert found, line + process.stderr.read()
            yield process, found[1]
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
