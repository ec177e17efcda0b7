"""`rankwise check` on this very host, as a user runs it."""

from __future__ import annotations

import json
import os
import pty
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rankwise.preflight.all_checks import all_checks
from rankwise.preflight.checks import code
from rankwise.preflight.facts import Here
from rankwise.preflight.job_options import CheckPlan
from rankwise.preflight.torch_process import TorchProcess


def check(run_rankwise: Callable[..., Any], *args: str, **rest: Any) -> tuple[Any, dict[str, Any]]:
    ran = run_rankwise("check", "--json", *args, **rest)
    return ran, json.loads(ran.stdout)


def codes(report: dict[str, Any]) -> list[str]:
    return [finding["code"] for finding in report["findings"]]


@pytest.mark.serial
def test_one_host_is_checked_whole_and_quickly(run_rankwise: Callable[..., Any], tmp_path: Path, free_port: int) -> None:
    ran, report = check(run_rankwise, "--master-port", str(free_port), cwd=tmp_path)

    assert ran.code == (1 if report["outcome"] == "fail" else 0)
    assert ran.seconds < 20
    assert {result["check"] for result in report["results"]} == {item.name for item in all_checks() if item.group != "fit"}
    for result in report["results"]:
        assert result["status"] in ("pass", "warn", "fail", "not possible")
        assert result["values"] or result["why"]
    assert "rankwise check: " in ran.stderr  # progress


def test_a_held_port_names_its_holder(run_rankwise: Callable[..., Any]) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        ran, report = check(run_rankwise, "--only", "ports", "--master-port", str(held.getsockname()[1]))

    assert (ran.code, codes(report)) == (1, ["RW107"])
    assert f"pid {os.getpid()}" in report["findings"][0]["summary"]
    assert report["findings"][0]["culprits"][0]["pid"] == os.getpid()


def test_an_unknown_host_is_a_finding(run_rankwise: Callable[..., Any]) -> None:
    ran, report = check(run_rankwise, "--only", "names", "--master-addr", "no-such-host.invalid")

    assert (ran.code, codes(report)) == (1, ["RW106"])


def test_a_missing_interface_is_a_finding(run_rankwise: Callable[..., Any]) -> None:
    ran, report = check(run_rankwise, "--only", "names", env={"GLOO_SOCKET_IFNAME": "^docker0,lo"})

    assert (ran.code, codes(report)) == (1, ["RW108"])
    assert "NCCL's syntax" in report["findings"][0]["summary"]


def test_limits_of_this_process_are_seen(tmp_path: Path) -> None:
    command = f"ulimit -n 60; ulimit -v 800000; exec {sys.executable} -m rankwise check --json --only resources --nproc-per-node 4"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    report = json.loads(done.stdout)

    assert done.returncode == 1
    assert {"RW614", "RW611"} <= set(codes(report))
    assert "RLIMIT_AS" in next(result for result in report["results"] if result["check"] == "memory")["values"][socket.gethostname()]


@pytest.mark.parametrize(
    ("folder", "word"), [("/proc", "may not be written"), ("file/x", "is not a folder")], ids=["no permission", "below a file"]
)
def test_a_place_for_checkpoints_that_cannot_be_written(run_rankwise: Callable[..., Any], tmp_path: Path, folder: str, word: str) -> None:
    (tmp_path / "file").touch()
    ran, report = check(run_rankwise, "--only", "resources", "--checkpoints", folder, cwd=tmp_path)
    found = [finding["summary"] for finding in report["findings"] if finding["code"] == "RW615"]

    assert ran.code == 1
    assert found and word in found[0]


def test_a_broken_torch_is_named_and_the_rest_still_checked(run_rankwise: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so.13: cannot open shared object file')\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    ran, report = check(run_rankwise, "--only", "parity,gpus", cwd=tmp_path, env={"PYTHONPATH": path})

    assert (ran.code, codes(report)) == (1, ["RW624"])
    assert "libcudart" in report["findings"][0]["why"]


def test_a_torch_that_does_not_answer_ends_with_the_time_limit(run_rankwise: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("import time; time.sleep(60)\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    ran, report = check(run_rankwise, "--only", "parity,resources", "--time-limit", "3", cwd=tmp_path, env={"PYTHONPATH": path})

    assert ran.seconds < 30
    assert next(result["status"] for result in report["results"] if result["check"] == "versions") in ("fail", "not possible")
    assert [result["status"] for result in report["results"] if result["check"] == "disk"] == ["pass"]


def test_the_code_is_hashed_with_what_it_imports(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import model\nfrom parts import layer\n")
    (tmp_path / "parts").mkdir()
    for name in ("__init__", "layer", "unused"):
        (tmp_path / "parts" / f"{name}.py").write_text(f"# {name}\n")
    here = Here(CheckPlan(script=tmp_path / "train.py"), TorchProcess(), time.monotonic() + 10)
    seen = []
    for text in ("x = 1\n", "x = 2\n"):
        (tmp_path / "model.py").write_text(text)
        seen.append(code.look(here)["files"])

    assert set(seen[0]) == {"train.py", "model.py", "parts/__init__.py", "parts/layer.py"}
    assert {path for path in seen[0] if seen[0][path] != seen[1][path]} == {"model.py"}


def test_a_script_with_arguments_of_its_own_is_taken_apart(run_rankwise: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    ran, report = check(run_rankwise, "--only", "ports", "--standalone", "train.py", "--json_file", "x", "--nnodes", "0", cwd=tmp_path)

    assert (ran.code, report["outcome"]) == (0, "pass")


def test_a_terminal_gets_a_table_and_a_log_plain_text(run_rankwise: Callable[..., Any]) -> None:
    plain = run_rankwise("check", "--only", "ports,names", "--standalone")
    main_end, other_end = pty.openpty()
    done = subprocess.Popen(
        [sys.executable, "-m", "rankwise", "check", "--only", "ports,names", "--standalone"], stdout=other_end, stderr=subprocess.DEVNULL
    )
    os.close(other_end)
    shown = b""
    try:
        while data := os.read(main_end, 65536):
            shown += data
    except OSError:  # the terminal's other end is closed
        pass
    os.close(main_end)

    assert (plain.code, done.wait(30)) == (0, 0)
    assert "\x1b" not in plain.stdout and "torchrun picks one" in plain.stdout
    assert "───" in shown.decode() and "\x1b[32mpass" in shown.decode()


WRONG = {
    "port 0": ["--master-port", "0"],
    "port of an endpoint": ["--rdzv-endpoint", "node-a:70000"],
    "no nodes": ["--nnodes", "0"],
    "nodes backwards": ["--nnodes", "3:2"],
    "no place to meet": ["--nnodes", "2"],
    "no number of ranks": ["--nproc-per-node", "many"],
    "unknown group": ["--only", "weather"],
    "no script": ["--script", "nowhere.py"],
    "fit": ["--fit", "step"],
    "time limit": ["--time-limit", "soon"],
    "unknown option": ["--frobnicate"],
}


@pytest.mark.parametrize("argv", WRONG.values(), ids=WRONG)
def test_wrong_usage_is_told_and_exits_2(argv: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from rankwise.cli.main import main

    monkeypatch.delenv("MASTER_ADDR", raising=False)
    assert main(["check", *argv]) == 2
    told = capsys.readouterr()
    assert told.err.startswith("RW001") and "next " in told.err
    assert not told.out
