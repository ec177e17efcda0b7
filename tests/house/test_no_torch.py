"""`import rankwise` and every `--help` load no torch: it costs a second, and the tool must answer at once."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rankwise.cli.main import COMMANDS

# Runs the command line in-process and then tells which of the heavy modules it has loaded.
SPY = """
import sys
try:
    from rankwise.cli.main import main
    sys.argv = ["rankwise", *sys.argv[1:]]
    code = main()
except SystemExit as stop:
    code = stop.code
loaded = [name for name in ("torch", "numpy", "rich") if name in sys.modules]
print(f"CODE={code or 0} LOADED={','.join(loaded)}")
"""


def last_line(*command: str) -> str:
    done = subprocess.run([sys.executable, "-c", *command], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def test_importing_rankwise_loads_no_torch() -> None:
    assert last_line("import sys, rankwise; print('torch' in sys.modules)") == "False"


def test_importing_every_room_that_may_not_use_torch_loads_none() -> None:
    rooms = [
        "errors",
        "findings",
        "causes",
        "evidence",
        "diagnose",
        "launch",
        "preflight.whole_check",
        "report",
        "cli",
        "pool",
        "pool.processes",
        "serve.serving",
        "train.spawn",
    ]
    code = "import sys\n" + "".join(f"import rankwise.{room}\n" for room in rooms) + "print('torch' in sys.modules)"

    assert last_line(code) == "False"


@pytest.mark.parametrize("command", [None, *COMMANDS])
def test_help_loads_no_torch(command: str | None) -> None:
    args = [command, "--help"] if command else ["--help"]

    assert last_line(SPY, *args) == "CODE=0 LOADED="
