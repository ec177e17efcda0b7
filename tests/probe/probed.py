"""Runs Python as a process of a watched job would run, without the watcher: the probe in its environment, and a folder it writes to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import rankwise

PROBE = Path(rankwise.__file__).parent / "probe"
SITE = PROBE / "site"
_FOREIGN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "PYTHONPATH", "PYTHONFAULTHANDLER", "PYTHONWARNINGS")


@dataclass(frozen=True)
class Ended:
    """One finished process, and what its job's probes left."""

    code: int
    out: str
    err: str
    live: Path

    def journals(self) -> dict[int, list[dict[str, Any]]]:
        """Each process's own lines, by pid."""
        found = {}
        for path in sorted(self.live.glob("p-*.jsonl")):
            found[int(path.stem[2:])] = [json.loads(line) for line in path.read_text().splitlines()]
        return found

    def lines(self, kind: str) -> list[dict[str, Any]]:
        """All lines of one kind, of all processes."""
        return [line for lines in self.journals().values() for line in lines if line["k"] == kind]


def bare_environment(**more: str) -> dict[str, str]:
    """An environment in which nothing of a job is set."""
    kept = {name: value for name, value in os.environ.items() if name not in _FOREIGN and not name.startswith(("RANKWISE_", "TORCH"))}
    return {**kept, **more}


def probed_environment(live: Path, *, probe: Path = PROBE, **more: str) -> dict[str, str]:
    """What `rankwise run` adds to the environment of a job (but for its pipes)."""
    env = bare_environment(**more)
    own = [str(probe / "site"), *filter(None, [env.get("PYTHONPATH")])]
    return {**env, "PYTHONPATH": os.pathsep.join(own), "RANKWISE_PROBE": str(live), "RANKWISE_LAUNCHER_PID": str(os.getpid())}


def run(
    command: list[str | Path], live: Path, env: dict[str, str], cwd: Path | None = None, timeout_s: float = 170, given: str = ""
) -> Ended:
    done = subprocess.run([str(word) for word in command], env=env, cwd=cwd, capture_output=True, input=given.encode(), timeout=timeout_s)
    return Ended(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"), live)


def run_script(script: Path, live: Path, *, args: tuple[str, ...] = (), timeout_s: float = 170, **env: str) -> Ended:
    """One script under the probe; RANK="0" in `env` makes it a rank."""
    return run([sys.executable, script, *args], live, probed_environment(live, **env), script.parent, timeout_s)


def run_bare(script: Path, live: Path, *, args: tuple[str, ...] = (), timeout_s: float = 170, **env: str) -> Ended:
    """The same without the probe."""
    return run([sys.executable, script, *args], live, bare_environment(**env), script.parent, timeout_s)


def write_script(folder: Path, text: str, name: str = "script.py") -> Path:
    path = folder / name
    path.write_text(textwrap.dedent(text).lstrip("\n"))
    return path


def line_of(script: Path, comment: str) -> int:
    """The number of the line that ends in this comment."""
    marked = [number for number, text in enumerate(script.read_text().splitlines(), 1) if text.endswith(f"# {comment}")]
    assert len(marked) == 1, f"{comment!r} marks {len(marked)} lines of {script.name}"
    return marked[0]
