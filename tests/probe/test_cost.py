"""A process that never touches torch pays next to nothing for the probe: what it would have to import is what it would have to pay."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.probe.probed import bare_environment, probed_environment, run

TELL_MODULES = "import sys; print(*sorted(sys.modules))"
# What costs more than the whole allowance (5 ms), alone or with what it drags along.
HEAVY = {"json", "ctypes", "torch", "typing", "re", "enum", "inspect", "traceback", "sysconfig", "contextlib", "importlib.util", "socket"}


def extra_modules(live: Path, code: str, **env: str) -> set[str]:
    """The modules a process has with the probe and has not without."""
    command = [sys.executable, "-c", f"{code}; {TELL_MODULES}"]
    probed = run(command, live, probed_environment(live, **env))
    bare = run(command, live, bare_environment(**env))
    assert (probed.code, bare.code) == (0, 0), probed.err + bare.err
    return set(probed.out.split()) - set(bare.out.split())


@pytest.mark.parametrize(
    "code",
    ["pass", "import subprocess", "import multiprocessing.process, multiprocessing.popen_fork", "import multiprocessing.popen_spawn_posix"],
)
def test_a_process_without_torch_imports_nothing_heavy(live: Path, code: str) -> None:
    extra = extra_modules(live, code)

    assert "_rankwise_probe" in extra  # it does ride along
    assert not extra & HEAVY


def test_a_process_without_torch_writes_nothing(live: Path) -> None:
    extra_modules(live, "import subprocess, sys; subprocess.run([sys.executable, '-c', 'pass'], check=True)")

    assert not list(live.iterdir())


def test_a_rank_is_not_made_to_import_torch(live: Path) -> None:
    extra = extra_modules(live, "pass", RANK="0", WORLD_SIZE="2")

    assert not extra & {"torch", "ctypes", "numpy"}
