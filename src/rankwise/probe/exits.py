"""Notes how a process ends: its exception, the line that called exit, and the signals it sends."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` without its enums, which cost milliseconds
import atexit
import faulthandler
import os
import sys

from . import descriptors, hooks, journal, process, sites

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

STACK_SIGNAL = _signal.SIGRTMAX - 2
_ended_pid = 0
_last_exit_call: list[Any] = []
_exit_code: Any = None
_installed = False
_registered_with: list[ModuleType] = []


def install() -> None:
    """Install the hooks, once per interpreter; a forked child that is recorded too only gets its own file for stacks on request."""
    global _installed
    if _installed:
        descriptors.reopen_in_child("stacks", _path("t"))
        return
    _installed = True
    _watch_crashes()
    atexit.register(_at_exit)
    os.register_at_fork(after_in_child=hooks.guarded(_after_fork))
    os._exit = hooks.wrap(os._exit, hooks.guarded(_note_os_exit))
    os.kill = hooks.wrap(os.kill, hooks.guarded(_note_signal))
    sys.exit = hooks.wrap(sys.exit, hooks.guarded(_note_exit_call))
    hooks.after("_sitebuiltins", "exits", "watch_quitter")
    hooks.after("threading", "exits", "watch_threads")


def go_first() -> None:
    """Register our exit handler again, so that it runs first (handlers run last in, first out): others may hang, or join threads."""
    atexit.unregister(_at_exit)
    atexit.register(_at_exit)
    import threading

    if threading not in _registered_with:
        _registered_with.append(threading)
        threading._register_atexit(_at_exit)  # type: ignore[attr-defined]  # private, but the only hook before the joins


def note_exception(error: BaseException, thread: str = "MainThread") -> None:
    """Write an uncaught exception."""
    import traceback

    frames = traceback.extract_tb(error.__traceback__)
    journal.write(
        "raise",
        type=_name_of(error),
        message=str(error)[:4000],
        frames=[[f.filename, f.lineno or 0, f.name] for f in reversed(frames)][:80],
        thread=thread,
        text="".join(traceback.format_exception(error))[-12000:],
        finding=_finding_of(error),
    )


def _finding_of(error: BaseException) -> dict[str, Any] | None:
    """The finding of one of rankwise's own errors, told by its module: the user's environment need not have rankwise to import it from."""
    finding: Any = getattr(error, "finding", None)
    return finding.to_dict() if type(finding).__module__ == "rankwise.findings" else None


def note_child_end(error: BaseException | None) -> None:
    """Note how a child of multiprocessing ends: multiprocessing itself catches what it raised, so no hook sees it."""
    if _ended_pid == os.getpid():
        return
    elif error is None:
        _note_end("finished", 0)
    elif not isinstance(error, SystemExit):
        hooks.guarded(note_exception)(error)
        _note_end("exception", 1)
    elif error.__context__ is not None and error.code not in (0, None):  # torch's spawn turns an exception into sys.exit(1)
        if not _last_exit_call:
            hooks.guarded(note_exception)(error.__context__)
        _note_end("exception", error.code)
    else:
        _note_end("sys_exit", error.code, _last_exit_call[0] if _last_exit_call else ())


def _at_exit() -> None:
    error = getattr(sys, "last_value", None)
    if _ended_pid == os.getpid():
        return
    elif error is not None:
        hooks.guarded(note_exception)(error)
        _note_end("exception", 1)
    elif _last_exit_call:
        _note_end("sys_exit", _exit_code, _last_exit_call[0])
    else:
        _note_end("finished", 0)


def _note_end(kind: str, code: Any, stack: Any = ()) -> None:
    global _ended_pid
    _ended_pid = os.getpid()
    if not isinstance(code, int):
        code = 0 if code is None else 1
    code = int(code) if abs(code) < 2**31 else 255
    audit = sys.modules.get(f"{__package__}.audit.events")
    if audit is not None:
        audit.process_ends()
    hooks.guarded(journal.write)("exit", kind=kind, code=code, frames=list(stack))
    server = sys.modules.get(f"{__package__}.worker_server")
    if server is not None:
        hooks.guarded(server.write_flight_recorder)(process.live)


def _watch_crashes() -> None:
    """Have faulthandler write the stack to our file at a native crash, and on a real-time signal, for hosts that refuse ptrace."""
    if not faulthandler.is_enabled():
        faulthandler.enable(descriptors.keep_open("crash", _path("f")))
    if _signal.getsignal(STACK_SIGNAL) == _signal.SIG_DFL:
        faulthandler.register(STACK_SIGNAL, descriptors.keep_open("stacks", _path("t")), all_threads=True, chain=False)


def _path(kind: str) -> str:
    return f"{process.live}/{kind}-{os.getpid()}"


def _after_fork() -> None:
    """A forked child forgets what it inherited about the parent's end, and writes its own crash file.

    It gets no file for stacks on request yet: such a file says that the signal may be sent, and a child that calls exec would die of it.
    """
    global _exit_code
    _last_exit_call.clear()
    _exit_code = None
    sites.forget()
    descriptors.reopen_in_child("crash", _path("f"))


def _note_os_exit(frame: Any, status: int) -> None:
    stack = sites.stack_of(frame)
    if _ended_pid != os.getpid() and not (stack and "multiprocessing" in stack[0][0]):
        _note_end("os_exit", status, stack)


def watch_quitter(module: ModuleType) -> None:
    """Note calls of `exit()` and `quit()`, which raise SystemExit without sys.exit."""
    note = hooks.guarded(_note_exit_call)
    module.Quitter.__call__ = hooks.wrap(module.Quitter.__call__, lambda frame, _quitter, code=None: note(frame, code))


def _note_exit_call(frame: Any, status: Any = None) -> None:
    global _exit_code
    _exit_code = status
    _last_exit_call[:] = [sites.stack_of(frame)]
    handled = sys.exc_info()[1]
    if handled is not None and status not in (0, None):
        note_exception(handled)


def _note_signal(frame: Any, pid: int, sig: int) -> None:
    if int(sig):
        journal.write("signal", target=pid, signal=int(sig), frames=sites.stack_of(frame))


def watch_threads(module: ModuleType) -> None:
    """Note exceptions that end a thread, even if the user has set threading.excepthook."""
    original = module._make_invoke_excepthook

    def make() -> Any:
        invoke = original()

        def invoke_excepthook(thread: Any) -> None:
            error = sys.exc_info()[1]
            if error is not None and not isinstance(error, SystemExit):
                hooks.guarded(note_exception)(error, thread.name)
            invoke(thread)

        return invoke_excepthook

    module._make_invoke_excepthook = make  # type: ignore[attr-defined]


def _name_of(error: BaseException) -> str:
    cls = type(error)
    return cls.__qualname__ if cls.__module__ in ("builtins", "__main__") else f"{cls.__module__}.{cls.__qualname__}"
