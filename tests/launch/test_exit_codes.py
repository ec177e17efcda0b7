"""The job's own exit code comes through, and how each process ended is known rightly whatever it said itself."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rankwise.diagnose.no_ranks import find_command_failure
from rankwise.evidence.run_folder import load_evidence
from tests.families import mostly_live
from tests.launch.jobs import line_of, write_script

CODES = {
    "finishes": ("pass", 0),
    "exits": ("import sys; sys.exit(3)", 3),
    "leaves at once": ("import os; os._exit(70)", 70),  # also our own code for a hung job
    "raises": ("raise KeyError('x')", 1),
    "killed": ("import os; os.kill(os.getpid(), 9)", 128 + 9),
    "terminated": ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", 128 + 15),
    "crashes": ("import ctypes; ctypes.string_at(0)", 128 + 11),
    "largest": ("import os; os._exit(255)", 255),
}


@pytest.mark.parametrize(("code", "expected"), mostly_live(CODES.values(), 3), ids=CODES)
def test_the_commands_own_code(tmp_path: Path, run_rankwise: Callable[..., Any], code: str, expected: int) -> None:
    ran = run_rankwise("run", "--out", tmp_path / "out", "--", sys.executable, "-c", code)

    assert ran.code == expected
    assert "Traceback" not in ran.stderr.replace('Traceback (most recent call last):\n  File "<string>"', "")  # only the user's own
    assert ran.verdict["exit_code"] == expected
    assert ran.verdict["outcome"] == ("completed" if expected == 0 else "crashed")


def test_a_job_that_completed_was_not_stuck(tmp_path: Path, run_rankwise: Callable[..., Any]) -> None:
    script = write_script(tmp_path, "import torch.distributed as dist\ndist.init_process_group('gloo')\ndist.destroy_process_group()\n")

    ran = run_rankwise("run", "--out", tmp_path / "out", "--standalone", script)

    assert ran.verdict["seconds"]["stuck_before_verdict"] is None
    assert "stuck" not in ran.text


def test_a_shell_in_between(tmp_path: Path, run_rankwise: Callable[..., Any]) -> None:
    ran = run_rankwise("run", "--out", tmp_path / "out", "--", "sh", "-c", "exit 42")

    assert ran.code == 42


def test_a_command_that_dies_before_any_rank_exists(tmp_path: Path, run_rankwise: Callable[..., Any]) -> None:
    """The evidence holds its last words, which is all there is to tell."""
    script = write_script(tmp_path, "print('loading')\nimport nothing_of_this_name  # here\n")
    ran = run_rankwise("run", "--out", tmp_path / "out", "--", sys.executable, script)
    finding = find_command_failure(load_evidence(tmp_path / "out" / "evidence"))

    assert ran.code == 1
    assert finding is not None
    assert "ModuleNotFoundError: No module named 'nothing_of_this_name'" in finding.summary
    assert finding.culprits[0].line == line_of(script, "here")


def test_how_each_rank_ended(tmp_path: Path, run_rankwise: Callable[..., Any]) -> None:
    """What a process cannot say of itself its parent knows: `raise SystemExit(3)` is no normal end, a caught sys.exit is no exit."""
    endings = [
        "raise SystemExit(3)",
        "import sys\ntry:\n    sys.exit(3)\nexcept SystemExit:\n    pass",
        "import os\nos._exit(4)  # here",
        "import threading, sys\nt = threading.Thread(target=sys.exit, args=(5,))\nt.start()\nt.join()",
        "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
        "pass",
    ]
    scripts = [write_script(tmp_path, text, f"rank{rank}.py") for rank, text in enumerate(endings)]
    launcher = write_script(
        tmp_path,
        f"""
        import os, subprocess, sys
        ranks = [subprocess.Popen([sys.executable, f"rank{{r}}.py"], env={{**os.environ, "RANK": str(r)}}) for r in range({len(endings)})]
        print([rank.wait() for rank in ranks])
        """,
        "launcher.py",
    )
    ran = run_rankwise(
        "run", "--out", tmp_path / "out", "--", sys.executable, launcher, env={"WORLD_SIZE": str(len(endings))}, cwd=tmp_path
    )
    ranks = load_evidence(tmp_path / "out" / "evidence").ranks
    ended = [(e.ended.kind, e.ended.code, e.ended.signal) if (e := ranks[rank]).ended else None for rank in range(len(endings))]

    assert ran.code == 0
    assert "[3, 0, 4, 0, -9, 0]" in ran.stdout
    assert ended[0] is not None
    assert ended[0][1] == 3, "raise SystemExit(3)"
    assert ended[1] == ("finished", 0, None), "a sys.exit that was caught"
    assert ended[2] == ("os_exit", 4, None)
    assert ranks[2].ended.stack[0].line == line_of(scripts[2], "here")
    assert ended[3] == ("finished", 0, None), "sys.exit in a thread ends the thread only"
    assert ended[4] is not None
    assert (ended[4][0], ended[4][2]) == ("signal", signal.SIGKILL)
    assert ended[5] == ("finished", 0, None)


@pytest.mark.parametrize("whose", ["ours", "the users"])
def test_a_native_crash_is_told_with_its_line(tmp_path: Path, run_rankwise: Callable[..., Any], whose: str) -> None:
    """Also where the script enabled faulthandler itself, so that the stack goes to its stderr and not to us."""
    enable = "import faulthandler; faulthandler.enable()" if whose == "the users" else ""
    script = write_script(tmp_path, f"import ctypes\n{enable}\ndef step():\n    ctypes.string_at(0)  # here\nstep()\n")

    ran = run_rankwise("run", "--out", tmp_path / "out", "--", sys.executable, script, env={"RANK": "0", "WORLD_SIZE": "1"})

    assert ran.code == 128 + signal.SIGSEGV
    assert ran.codes[0] == "RW405"
    (culprit,) = ran.verdict["findings"][0]["culprits"]
    assert (culprit["rank"], Path(culprit["file"]).name, culprit["line"]) == (0, "job.py", line_of(script, "here"))
