"""Starts the job before the rest of rankwise is imported: the watcher is loaded while the job's processes import torch."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from importlib.util import cache_from_source
from pathlib import Path

from rankwise.launch.faults import Faults
from rankwise.launch.guardian import PR_SET_CHILD_SUBREAPER
from rankwise.launch.job import RunningJob
from rankwise.launch.job_output import OutputPump
from rankwise.launch.plan import RunPlan
from rankwise.launch.tags import tagging_environment

_LIVE_ROOM = 32 << 20
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PROBE = Path(__file__).parent.parent / "probe"


def start_job(plan: RunPlan, folder: Path) -> RunningJob:
    """Start the command of a plan, with the probe in its environment and its output read by us."""
    started_ns = time.time_ns()
    asked = _note_signals(is_torchrun=plan.style == "torchrun")
    _compile_probe()
    live = _make_live_folder()
    (folder / "logs").mkdir(mode=0o700, parents=True, exist_ok=True)
    faults = Faults(folder / "logs" / "rankwise.log")
    tagging = tagging_environment(plan.command)
    restarting = _restart_environment(plan)
    for name, value in restarting.items():
        faults.write_log(f"set {name}={value}, so that every restart has a rendezvous store of its own (rankwise explain RW127)")
    output = OutputPump(live / "sink", folder / "logs", is_tagged=bool(tagging), faults=faults)
    faults.tell_to(output.say)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # should the guardian be killed, its orphans come to us
    control_read, control = os.pipe()
    status, status_write = os.pipe()
    out, err = output.shared_writers
    output.start()  # everything that may fail comes before the job, because no failure of ours may end it
    guardian = subprocess.Popen(
        [
            *(sys.executable, "-I", "-S", str(Path(__file__).with_name("guardian.py"))),
            *(str(control_read), str(status_write), str(live), *plan.command),
        ],
        env={**_environment(live, output, plan), **tagging, **restarting},
        stdout=out,
        stderr=err,
        pass_fds=(control_read, status_write),
    )
    job = RunningJob(live, output, guardian, control, status, started_ns, asked, faults)
    with faults.guard("prepare to watch"):
        os.close(control_read)
        os.close(status_write)
        output.hand_over()
        _allow_many_files()
    return job


def _allow_many_files() -> None:
    """Raise our own limit, since each rank costs us a few descriptors; after the start, so that the job keeps the limit it was given."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _note_signals(is_torchrun: bool) -> list[int]:
    """From now on signals that would end us are only noted in the returned list; ignored ones (nohup) stay ignored.

    A shell starts a script's background command (&) with SIGINT ignored. torchrun ends on SIGINT all the same, so we note it too.
    """
    asked: list[int] = []
    if threading.current_thread() is threading.main_thread():
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN or (is_torchrun and number == signal.SIGINT):
                signal.signal(number, lambda n, _: asked.append(n))
    return asked


def _compile_probe() -> None:
    """Compile the probe once where Python keeps no bytecode (PYTHONDONTWRITEBYTECODE): else each process of each job would compile it."""
    if not sys.dont_write_bytecode:
        return
    for source in (*_PROBE.glob("*.py"), *_PROBE.glob("site/*.py"), *_PROBE.glob("audit/*.py")):
        compiled = Path(cache_from_source(str(source)))
        with contextlib.suppress(OSError):
            if not compiled.exists() or compiled.stat().st_mtime < source.stat().st_mtime:
                import py_compile

                py_compile.compile(str(source), quiet=2)


def _environment(live: Path, output: OutputPump, plan: RunPlan) -> dict[str, str]:
    env = dict(os.environ)
    site = str(_PROBE / "site")
    env["PYTHONPATH"] = os.pathsep.join([site, *filter(None, [env.get("PYTHONPATH", "")])])
    env["RANKWISE_SITE"] = site  # read by the .pth file of an installed rankwise, for jobs that replace PYTHONPATH
    env["RANKWISE_PROBE"] = str(live)
    env["RANKWISE_SINK"] = str(live / "sink")
    env["RANKWISE_AUDIT"] = "light" if plan.profile and plan.audit == "off" else plan.audit
    env["RANKWISE_PROFILE"] = "1" if plan.profile else "0"
    env["RANKWISE_PIPES"] = output.identities()
    env["RANKWISE_LAUNCHER_PID"] = str(os.getpid())
    return env


def _restart_environment(plan: RunPlan) -> dict[str, str]:
    """The variable that gives each restart its own store, unless the user set it: torchrun's shared one holds addresses of dead ranks."""
    name = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
    return {name: "1"} if plan.may_restart and name not in os.environ else {}


def _make_live_folder() -> Path:
    """A private folder for sockets, rings and journals: short enough a path for unix sockets, and with room.

    Not /dev/shm by choice: a job that fills it must still be able to say so.
    """
    base = next((folder for folder in (tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm") if _is_roomy(folder)), tempfile.gettempdir())
    _sweep(Path(base))
    live = Path(tempfile.mkdtemp(prefix="rankwise-", dir=base))
    (live / "owner").write_text(str(os.getpid()))
    return live


def _is_roomy(folder: str) -> bool:
    try:
        stats = os.statvfs(folder)
    except OSError:
        return False
    return len(folder) < 60 and os.access(folder, os.W_OK) and stats.f_bavail * stats.f_frsize > _LIVE_ROOM


def _sweep(base: Path) -> None:
    """Remove what earlier runs of this user left when launcher and guardian were both killed."""
    for live in base.glob("rankwise-*"):
        with contextlib.suppress(OSError, ValueError):
            owner = int((live / "owner").read_text())
            if live.stat().st_uid == os.getuid() and not Path(f"/proc/{owner}").exists():
                shutil.rmtree(live, ignore_errors=True)
