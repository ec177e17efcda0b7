"""`rankwise demo`: the tour. Trains on two ranks, breaks the training, shows the verdict, trains with the helpers, predicts, serves."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rankwise.cli import run
from rankwise.cli.options import parsed

_TOUR = Path(__file__).with_name("tour")  # scripts as a user would write them; .py.txt, because they are no modules of ours
_TWO_RANKS = ("--standalone", "--nproc-per-node", "2")
_HUNG = 70


class _OffCourse(Exception):
    """A step of the tour failed; the text says which."""


def main(argv: list[str]) -> int:
    parsed("demo", add_options, argv)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # torchrun's own default, which it otherwise announces at length
    out = Path.cwd() / "rankwise-runs" / f"{time.strftime('%Y%m%d-%H%M%S')}-demo"
    _say("rankwise demo: two ranks on this CPU, no network, no GPU, about a minute.")
    try:
        with tempfile.TemporaryDirectory(prefix="rankwise-demo-") as folder, contextlib.chdir(folder):
            for path in _TOUR.glob("*.py.txt"):
                Path(folder, path.stem).write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
            _train()
            verdict = _break(out)
            _train_with_helpers()
    except _OffCourse as error:
        _say("", f"The tour did not go as planned: {error}.")
        return 1
    _look_closer(out, verdict)
    return 0


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "A training on two ranks that works, the same with a real fault, its verdict. "
        "With scikit-learn: the helpers, inference and a server."
    )


def _train() -> None:
    _say("", "1. A training that works: train.py is a plain DDP script that knows nothing of rankwise.", "")
    code, seconds = _run("train.py", Path("healthy"))
    _check_well("train.py", code)
    _say("", f"Exit code 0 after {seconds:.0f} s. The loss falls, there is nothing to report.")


def _break(out: Path) -> dict[str, Any]:
    _say("", "2. The same with a fault: train_broken.py has three lines more. Under torchrun it would stand still for 30 minutes.", "")
    _say(*_added_lines("train.py", "train_broken.py"), "")
    code, seconds = _run("train_broken.py", out)
    if code != _HUNG:
        raise _OffCourse(f"train_broken.py should have been found hung, with exit code {_HUNG}, but ended with {code}; see {out}")
    verdict: dict[str, Any] = json.loads((out / "verdict.json").read_text(encoding="utf-8"))
    finding, stuck_s = verdict["findings"][0], verdict["seconds"]["stuck_before_verdict"]
    if finding["code"] != "RW201":
        raise _OffCourse(f"the verdict should have been RW201, not {finding['code']}; see {out}")
    _say("", f"Exit code {code} after {seconds:.0f} s; the ranks had been stuck for {stuck_s:.1f} s when the verdict was told.")
    return verdict


def _train_with_helpers() -> None:
    if importlib.util.find_spec("sklearn") is None:
        _say(
            "",
            "3. The helpers, and inference: left out, since they need scikit-learn's digits (pip install scikit-learn).",
        )
        return
    _say("", "3. The helpers: train_ddp.py learns digits, with steps, sharding and checkpoints that cannot be held wrong.", "")
    code, seconds = _run("train_ddp.py", Path("digits"))
    _check_well("train_ddp.py", code)
    _say("", f"Exit code 0 after {seconds:.0f} s.")
    _say("", "4. The checkpoint goes into inference without DDP: one pool, two worker processes.", "")
    _say("   $ python predict_digits.py", "")
    _check_well("predict_digits.py", subprocess.run([sys.executable, "predict_digits.py"]).returncode)
    _serve()


def _serve() -> None:
    missing = [name for name in ("httptools", "grpc", "tritonclient", "geventhttpclient") if importlib.util.find_spec(name) is None]
    if missing:
        _say("", f"5. A server for other people's clients: left out, since {', '.join(missing)} cannot be imported.")
        return
    _say("", "5. The same checkpoint behind a server that other people's clients speak to: NVIDIA's, here.", "")
    model = ["--build", "train_ddp:small_cnn", "--weights", "runs/digits/last.pt", "--name", "digits"]
    options = [*model, "--input", "picture:FP32:-1,1,8,8", "--max-batch", "64", "--http", "127.0.0.1:0"]
    _say(" ".join(["   $ rankwise serve", *options]), "")
    command = [sys.executable, "-m", "rankwise", "serve", *options, "--grpc", "", "--quiet"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stdout is not None
            line = server.stdout.readline().strip()
            if " on " not in line:
                raise _OffCourse("rankwise serve should have said where it listens")
            address = line.rpartition(" ")[2]
            _say(line, "", f"   $ python ask_digits.py {address}", "")
            _check_well("ask_digits.py", subprocess.run([sys.executable, "ask_digits.py", address]).returncode)
        finally:
            server.terminate()
            server.wait(60)


def _look_closer(out: Path, verdict: dict[str, Any]) -> None:
    folder = os.path.relpath(out)
    _say(
        "",
        "What is left to look at:",
        "",
        f"   {folder}/verdict.json   the verdict, for programs",
        f"   {folder}/report.html    the same as a page, with every rank and its last collectives: open it in a browser",
        "",
        "Next:",
        "",
        f"   $ rankwise explain {verdict['findings'][0]['code']}     what this is, why it happens, how to fix it",
        "   $ rankwise run --standalone --nproc-per-node 2 YOUR_SCRIPT.py",
    )


def _run(script: str, out: Path) -> tuple[int, float]:
    """`rankwise run` as from the shell: the exit code, and the seconds it took."""
    _say(" ".join(["   $ rankwise run", *_TWO_RANKS, script]), "")
    started = time.monotonic()
    code = run.main(["--out", str(out), *_TWO_RANKS, script])
    if code > 128:
        raise _OffCourse(f"{script} was stopped by signal {code - 128}")
    return code, time.monotonic() - started


def _check_well(script: str, code: int) -> None:
    if code != 0:
        raise _OffCourse(f"{script} should have ended with exit code 0, not {code}")


def _added_lines(before: str, after: str) -> list[str]:
    """The lines that only `after` has, with their numbers; the docstring at the top is left out."""
    old, new = (Path(name).read_text(encoding="utf-8").splitlines() for name in (before, after))
    added = []
    for kind, _, _, start, end in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind == "insert":
            added += [f"   {number + 1:3}  {new[number]}" for number in range(start, end)]
    return added


def _say(*lines: str) -> None:
    print(*lines, sep="\n", flush=True)  # flushed, because the job writes to the same terminal itself
