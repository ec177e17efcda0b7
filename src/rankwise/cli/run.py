"""`rankwise run`."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from rankwise.cli.options import parser_for
from rankwise.errors import UsageError
from rankwise.launch.plan import OWN_FLAGS, OWN_OPTIONS, TORCHRUN_FLAGS, TORCHRUN_VALUES, RunPlan, plan_run

if TYPE_CHECKING:
    from rankwise.launch.job import RunningJob
    from rankwise.launch.watch import Watch

_USAGE = """rankwise run [OPTIONS] [TORCHRUN OPTIONS] SCRIPT [ARGS...]
       rankwise run [OPTIONS] -- COMMAND..."""
_EPILOG = """examples:
  rankwise run --standalone --nproc-per-node 2 train.py --lr 0.1
  rankwise run --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint node-a:29400 --rdzv-id 7 train.py
  rankwise run -- python train.py            (a script that starts its ranks itself)
  rankwise run -- mpirun -n 4 python train.py

exit code: the job's own when it ends by itself; 70 when a hung job was stopped; 2 for wrong usage"""


_METAVARS = {"--out": "DIR", "--stall-after": "SECONDS", "--on-stall": "abort|report", "--audit": "off|light|full"}


def main(argv: list[str]) -> int:
    if not argv or _asks_for_help(argv):
        parser_for("run", add_options).print_help()
        return 0 if argv else 2
    plan = plan_run(argv)
    _open_closed_streams()
    from rankwise.launch.early_start import SIGNALS, start_job
    from rankwise.launch.follow import follow

    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        folder = _make_folder(plan)
        job = start_job(plan, folder)
    except (OSError, RuntimeError, MemoryError) as error:
        _become(plan.command, before, error)
    try:
        code = follow(job, lambda: _watcher(plan, folder, job))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if job.not_started:
        _remove_empty(folder, is_ours=plan.out is None)
        raise UsageError(f"cannot start {plan.command[0]!r}: {job.not_started}", next=("check the command after --",))
    if job.is_abandoned:  # a normal exit would wait for the watcher's threads
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
        os._exit(code)
    return code


def _open_closed_streams() -> None:
    """Open closed standard streams (`>&-`, a daemon's child) on /dev/null: else our next files get their numbers and the job's output."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number, which is this one
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  for good


def _watcher(plan: RunPlan, folder: Path, job: RunningJob) -> Watch:
    """Make the watch. Its imports take a while, so they happen here, while the job itself starts."""
    from rankwise.cli.telling import Telling
    from rankwise.launch.watch import Watch

    return Watch(plan, folder, job, Telling(folder, job.faults).tell)


def _remove_empty(folder: Path, is_ours: bool) -> None:
    """Remove the run folder of a job that did not start, if it is empty."""
    for place in (folder / "logs", folder, *([folder.parent] if is_ours else [])):
        with contextlib.suppress(OSError):
            place.rmdir()


def _become(command: tuple[str, ...], handlers: dict[signal.Signals, Any], error: Exception) -> NoReturn:
    """Run the command without us, because we cannot watch it (no folder for the probe, no thread)."""
    print(f"rankwise: cannot watch this job: {error}; it runs unwatched", file=sys.stderr, flush=True)
    for number, handler in handlers.items():
        signal.signal(number, handler)
    try:
        os.execvp(command[0], command)
    except OSError as failure:
        raise UsageError(f"cannot start {command[0]!r}: {failure.strerror}", next=("check the command after --",)) from failure


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.usage, parser.epilog = _USAGE, _EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    own = parser.add_argument_group("options of rankwise")
    for name, text in OWN_OPTIONS.items():
        own.add_argument(name, metavar=_METAVARS[name], help=text)
    for name, text in OWN_FLAGS.items():
        own.add_argument(name, action="store_true", help=text)
    torchrun = parser.add_argument_group("options of torchrun, passed on unchanged")
    for name, text in TORCHRUN_VALUES.items():
        torchrun.add_argument(name, metavar="X", help=text)
    for name, text in TORCHRUN_FLAGS.items():
        torchrun.add_argument(name, action="store_true", help=text)


def _asks_for_help(argv: list[str]) -> bool:
    """Whether --help is for us: it is before the script's name; after it, it is for the script."""
    for word in argv:
        if word in ("-h", "--help"):
            return True
        if word == "--" or not word.startswith("-"):
            return False
    return False


def _make_folder(plan: RunPlan) -> Path:
    """The run folder, private to the user. A folder that holds an earlier run is not overwritten."""
    if plan.out is None:
        return _make_default_folder(plan.script)
    try:
        if (plan.out / "verdict.json").exists():
            raise UsageError(
                f"{plan.out} already holds a run",
                why="its verdict would be overwritten",
                next=("give another --out", f"or remove {plan.out}"),
            )
        plan.out.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(
            f"cannot make the run folder {str(plan.out)!r}: {reason}", next=("give a folder you may write to with --out",)
        ) from error
    return plan.out


def _make_default_folder(script: str) -> Path:
    """Make the run folder in the current folder, or in the temporary one where that cannot be written, so that the job runs anyway."""
    stem = re.sub(r"[^\w.-]", "_", os.path.splitext(os.path.basename(script))[0]) or "job"
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{stem[:100]}"
    try:
        return _make_new(Path("rankwise-runs") / name)
    except OSError as error:
        import tempfile

        folder = Path(tempfile.mkdtemp(prefix=f"rankwise-run-{name}-"))  # mode 0700, under a name that is not taken
        print(f"rankwise: cannot write to rankwise-runs ({error.strerror}), so the run folder is {folder}", file=sys.stderr)
        return folder


def _make_new(folder: Path) -> Path:
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    while True:
        try:
            folder.mkdir(mode=0o700)
            return folder
        except FileExistsError:
            if not folder.is_dir():
                raise
            folder = folder.with_name(folder.name + "_")
