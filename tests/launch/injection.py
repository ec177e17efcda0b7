"""Finds every function of ours that watching a job calls, and runs the same job with one of them broken.

Run as a program (`python -m tests.launch.injection FOLDER PART PARTS`), so that what is broken is broken in a process of its own: one that
has loaded everything and then forks for each case. It prints one JSON object per case.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import gc
import json
import os
import subprocess
import sys
import threading
import traceback
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOMS = tuple(f"/rankwise/{room}" for room in ("launch/", "diagnose/", "evidence/", "report/", "causes/", "cli/telling.py", "findings.py"))
# What everything else stands on: reading the guardian's reports, the guard itself, the thread that reads the job's output. Each of these
# may fail now and then, but not always.
FLOOR = (
    "RunningJob.",
    "Faults.guard",
    "OutputPump._run",
    "OutputPump._turn",
    "OutputPump._read",
    "Terminal.write",
    "Terminal._put",
)
ERRORS: list[Callable[[], Exception]] = [
    lambda: RuntimeError("a bug of ours"),
    lambda: OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
    lambda: OSError(errno.EMFILE, os.strerror(errno.EMFILE)),
    MemoryError,
]
AT_ONCE = 8
WATCH_RUN = "launch/watch.py Watch.run"
# Two ranks that need no torch: what torch would have done they write down with the probe's own tools. Rank 0 waits for rank 1, which waits
# until the function is broken that this is about, and lets the watcher look a few times more.
RANK = """
import json, os, socket, sys, threading, time
from _rankwise_probe import journal, process, ring

rank = int(os.environ["RANK"])
journal.write("init", rank=rank, world_size=2, backend="gloo", method="env://", address="127.0.0.1", port="29500", timeout_s=None, site=0)
journal.write("inited", error="")
record = ring.open_ring(process.live)
created = []

def answer():
    while True:
        link, _ = recorder.accept()
        link.recv(4096)
        what = {"profiling_name": "gloo:all_reduce", "process_group": ["0", ""]}
        entries = [{**what, "time_created_ns": t, "collective_seq_id": i + 1, "retired": not i} for i, t in enumerate(created)]
        link.sendall(b"HTTP/1.0 200 OK\\r\\n\\r\\n" + json.dumps({"entries": entries}).encode())
        link.close()

path = f"{process.live}/s-{os.getpid()}"
recorder = socket.socket(socket.AF_UNIX)
recorder.bind(path)
recorder.listen()
threading.Thread(target=answer, daemon=True).start()
journal.write("server", path=path)
print("rank", rank, "started", flush=True)
def wait():
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and not os.path.exists(sys.argv[1]):
        time.sleep(0.05)
    time.sleep(0.7)

def all_reduce():
    number = record.enter(ring.NUMBER["all_reduce"], sys._getframe())
    created.append(time.time_ns())
    if len(created) > 1:
        wait()
    record.leave(number)

all_reduce()
(all_reduce if rank == 0 else wait)()
print("rank", rank, "went on", flush=True)
"""


@dataclass(frozen=True)
class Case:
    """One function, broken in one way."""

    function: str
    is_late: bool  # called only once the command has ended
    error: Callable[[], Exception]

    @property
    def how(self) -> str:
        return "once" if self.function.partition(" ")[2].startswith(FLOOR) else "always"


def main(folder: Path, part: int, parts: int) -> None:
    import rankwise.cli.run
    import rankwise.cli.telling  # noqa: F401

    (folder / "rank.py").write_text(RANK)
    command = [sys.executable, "-m", __spec__.name, str(folder), "record"]
    names: dict[str, bool] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    cases = [Case(name, is_late, ERRORS[i % len(ERRORS)]) for i, (name, is_late) in enumerate(sorted(names.items()))][part::parts]
    gc.freeze()
    running: dict[int, tuple[Case, Path]] = {}
    for number, case in enumerate(cases):
        while len(running) >= AT_ONCE:
            report_one(running)
        out = folder / f"case-{number}"
        out.mkdir()
        pid = os.fork()
        if pid == 0:
            run_case(case, out, folder / "rank.py")
        running[pid] = (case, out)
    while running:
        report_one(running)


def report_one(running: dict[int, tuple[Case, Path]]) -> None:
    pid, status = os.wait()
    case, out = running.pop(pid)
    verdict = out / "run" / "verdict.json"
    facts = {
        "function": case.function,
        "how": f"{case.how} {case.error()!r}",
        "code": os.waitstatus_to_exitcode(status),
        "out": (out / "out").read_text(),
        "err": (out / "err").read_text(),
        "hit": (out / "hit").exists(),
        "verdict": json.loads(verdict.read_text()) if verdict.exists() else None,
    }
    print(json.dumps(facts), flush=True)


def run_case(case: Case, out: Path, script: Path) -> None:
    """In a fork: run the job with one function broken from the first look on, and end with the exit code of `rankwise run`."""
    code = 99
    try:
        for fd, file in ((1, "out"), (2, "err")):
            os.dup2(os.open(out / file, os.O_WRONLY | os.O_CREAT), fd)
        from rankwise.launch.watch import Watch

        original = Watch.run

        def run(self: Watch) -> None:
            if case.function != WATCH_RUN:
                break_function(functions()[case.function], case, out / "hit")
                return original(self)
            (out / "hit").touch()
            raise case.error()

        Watch.run = run  # type: ignore[method-assign]
        code = watch(out / "run", script, out if case.is_late else out / "hit")
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        os._exit(code)


def watch(out: Path, script: Path, until: Path) -> int:
    from rankwise.cli import main as cli

    rank = f'"{sys.executable}" "{script}" "{until}"'
    os.environ["WORLD_SIZE"] = "2"
    ranks = f"RANK=0 {rank} & RANK=1 {rank} & wait; echo the end; exit 3"
    return cli.main(["run", "--out", str(out), "--stall-after", "0.5", "--", "sh", "-c", ranks])


def break_function(function: types.FunctionType, case: Case, hit: Path) -> None:
    """From now on the function raises: always, or at its next call only. All that refer to it see that, for its code is exchanged."""
    whole = types.FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
    whole.__kwdefaults__ = function.__kwdefaults__
    calls = [0]

    def broken(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        if case.how == "always" or calls[0] == 1:
            if calls[0] == 1:
                os.close(os.open(hit, os.O_CREAT | os.O_WRONLY))
            raise case.error()
        return whole(*args, **kwargs)

    builtins._broken = broken  # type: ignore[attr-defined]

    def stand_in(*args: Any, **kwargs: Any) -> Any:
        return _broken(*args, **kwargs)  # type: ignore[name-defined]  # noqa: F821  a builtin, whatever module the function is in

    function.__code__ = stand_in.__code__.replace(co_freevars=function.__code__.co_freevars)


def record(folder: Path) -> None:
    """Prints the names of all functions of ours that are called while a job is watched; true for those that are called at its end only."""
    from rankwise.launch.watch import Watch

    early, late = set[types.CodeType](), set[types.CodeType]()
    seen: set[types.CodeType] | None = None
    run, last_report = Watch.run, Watch._last_report

    def note(frame: types.FrameType, event: str, arg: object) -> None:
        if event == "call" and seen is not None:
            seen.add(frame.f_code)

    def noted_run(self: Watch) -> None:
        nonlocal seen
        seen = early
        return run(self)

    def noted_end(self: Watch, code: int) -> Any:
        nonlocal seen
        seen = late
        return last_report(self, code)

    Watch.run, Watch._last_report = noted_run, noted_end  # type: ignore[method-assign]
    threading.setprofile(note)
    sys.setprofile(note)
    stdout = os.dup(1)
    os.dup2(2, 1)
    code = watch(folder / "recorded", folder / "rank.py", folder / "recorded" / "verdict.json")
    sys.setprofile(None)
    threading.setprofile(None)  # type: ignore[arg-type]
    Watch.run, Watch._last_report = run, last_report  # type: ignore[method-assign]
    assert code == 3, code
    found = {name: function.__code__ not in early for name, function in functions().items() if function.__code__ in early | late}
    os.write(stdout, json.dumps({**found, WATCH_RUN: False}).encode())


def functions() -> dict[str, types.FunctionType]:
    """Every function and method of ours that is loaded, by file and name."""
    found = {}
    for module in [module for name, module in sys.modules.items() if name.startswith("rankwise.")]:
        for thing in vars(module).values():
            for function in members(thing):
                place = function.__code__.co_filename
                if any(room in place for room in ROOMS):
                    found[f"{place.rpartition('/rankwise/')[2]} {function.__qualname__}"] = function
    return found


def members(thing: object) -> Iterator[types.FunctionType]:
    """A function itself, or those of a class; what wraps a function stands for it."""
    things = vars(thing).values() if isinstance(thing, type) else [thing]
    for one in things:
        if isinstance(one, property):
            one = one.fget
        one = getattr(one, "__func__", one)
        while hasattr(one, "__wrapped__"):
            one = one.__wrapped__
        if isinstance(one, types.FunctionType):
            yield one


if __name__ == "__main__":
    if sys.argv[2] == "record":
        import rankwise.cli.run
        import rankwise.cli.telling  # noqa: F401

        record(Path(sys.argv[1]))
    else:
        main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
