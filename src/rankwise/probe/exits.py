"""Notes how a process ends: its exception, who called exit from where, the signals it sends, and how its children ended."""

import atexit
import faulthandler
import functools
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from types import ModuleType
from typing import Any

from . import hooks, journal, sites

STACK_SIGNAL = signal.SIGRTMAX - 2
_ended_pid = 0
_last_exit_call: list[Any] = []
_exit_code: Any = None
_files: list[Any] = []
_installed = False


def install() -> None:
    global _installed
    _watch_crashes()
    if _installed:
        return
    _installed = True
    atexit.register(_at_exit)
    os.register_at_fork(after_in_child=_after_fork)
    os._exit = _recorded_os_exit(os._exit)  # type: ignore[assignment]
    sys.exit = _recorded_sys_exit(sys.exit)
    os.kill = _recorded_kill(os.kill)
    threading._make_invoke_excepthook = _recorded_threads(threading._make_invoke_excepthook)  # type: ignore[attr-defined]


def go_first() -> None:
    """Handlers run last in, first out: be the first to run, before one that may hang."""
    atexit.unregister(_at_exit)
    atexit.register(_at_exit)


def note_exception(error: BaseException, thread: str = "MainThread") -> None:
    """Write an exception nobody caught, with its whole chain."""
    chain = _chain_of(error)
    frames = traceback.extract_tb(error.__traceback__)
    journal.write(
        "raise",
        type=_name_of(error),
        message=str(error)[:4000],
        frames=[[f.filename, f.lineno or 0, f.name] for f in reversed(frames)][:80],
        chain=[_name_of(link) for link in chain],
        thread=thread,
        text="".join(traceback.format_exception(error))[-12000:],
    )


def _at_exit() -> None:
    if _ended_pid == os.getpid():
        return
    error = getattr(sys, "last_value", None)
    if error is not None:
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
    hooks.guarded(journal.write)("exit", kind=kind, code=code, frames=list(stack))
    server = sys.modules.get("_rankwise_probe.server")
    if server is not None:
        hooks.guarded(server.dump_flight_recorder)(hooks.live)


def _watch_crashes() -> None:
    """A native crash leaves the Python stack in our file; a real-time signal does the same on request, where ptrace is refused."""
    if not faulthandler.is_enabled():
        faulthandler.enable(_open(f"{hooks.live}/f-{os.getpid()}"))
    if signal.getsignal(STACK_SIGNAL) == signal.SIG_DFL:
        faulthandler.register(STACK_SIGNAL, _open(f"{hooks.live}/t-{os.getpid()}"), all_threads=True, chain=False)


def _open(path: str) -> Any:
    file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600), "wb", buffering=0)
    _files.append(file)  # faulthandler keeps only the descriptor
    return file


def _after_fork() -> None:
    """A forked child is another process: the parent's end is not its end."""
    global _exit_code
    _last_exit_call.clear()
    _exit_code = None


def _recorded_os_exit(original: Callable[[int], Any]) -> Callable[[int], Any]:
    @functools.wraps(original)
    def _exit(status: int) -> Any:
        stack = sites.stack_of(sys._getframe(1))
        if _ended_pid != os.getpid() and not (stack and "multiprocessing" in stack[0][0]):
            _note_end("os_exit", status, stack)
        return original(status)

    return _exit


def _recorded_sys_exit(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def exit(status: Any = None, /) -> Any:  # noqa: A001  sys.exit's own name
        global _exit_code
        try:
            _exit_code = status
            _last_exit_call[:] = [sites.stack_of(sys._getframe(1))]
            handled = sys.exc_info()[1]
            if handled is not None and status not in (0, None):
                note_exception(handled)
        except Exception as error:
            hooks.note_broken("sys.exit", error)
        return original(status)

    return exit


def _recorded_kill(original: Callable[[int, int], None]) -> Callable[[int, int], None]:
    @functools.wraps(original)
    def kill(pid: int, sig: int, /) -> None:
        if sig:
            hooks.guarded(_note_signal)(pid, int(sig), sys._getframe(1))
        return original(pid, sig)

    return kill


def _note_signal(pid: int, sig: int, frame: Any) -> None:
    journal.open_in(hooks.live)
    journal.write("signal", target=pid, signal=sig, frames=sites.stack_of(frame))


def _recorded_threads(original: Callable[[], Any]) -> Callable[[], Any]:
    @functools.wraps(original)
    def make() -> Any:
        invoke = original()

        def invoke_excepthook(thread: Any) -> None:
            error = sys.exc_info()[1]
            if error is not None and not isinstance(error, SystemExit):
                hooks.guarded(note_exception)(error, thread.name)
            invoke(thread)

        return invoke_excepthook

    return make


def watch_multiprocessing(module: ModuleType) -> None:
    """multiprocessing catches what its children raise; note it before, whatever the child's own class does."""
    cls = module.BaseProcess
    original = cls._bootstrap

    @functools.wraps(original)
    def _bootstrap(self: Any, *args: Any, **kwargs: Any) -> Any:
        hooks.guarded(_aboard_child)(self)
        return original(self, *args, **kwargs)

    cls._bootstrap = _bootstrap


def _aboard_child(process: Any) -> None:
    if "torch" in sys.modules or hooks._aboard_pid or "--multiprocessing-fork" in sys.orig_argv:
        hooks.come_aboard()
        hooks.keep_output_apart()
        journal.write("child", name=process.name)
    run = process.run

    def recorded_run() -> None:
        try:
            run()
        except BaseException as error:
            hooks.guarded(_note_child_error)(error)
            raise
        _note_end("finished", 0)

    process.run = recorded_run


def _note_child_error(error: BaseException) -> None:
    if not isinstance(error, SystemExit):
        note_exception(error)
        _note_end("exception", 1)
        return
    cause = error.__context__  # torch's spawn turns an exception into sys.exit(1)
    if cause is not None and error.code not in (0, None):
        if not _last_exit_call:
            note_exception(cause)
        _note_end("exception", error.code)
    else:
        _note_end("sys_exit", error.code, _last_exit_call[0] if _last_exit_call else ())


def watch_forked_exit(module: ModuleType) -> None:
    cls = module.Popen
    original = cls.poll

    @functools.wraps(original)
    def poll(self: Any, *args: Any, **kwargs: Any) -> Any:
        before = self.returncode
        code = original(self, *args, **kwargs)
        if before is None and code:
            hooks.guarded(_note_child_exit)(self.pid, code)
        return code

    cls.poll = poll


def watch_subprocess(module: ModuleType) -> None:
    cls = module.Popen
    original = getattr(cls, "_handle_exitstatus", None)
    if original is None:
        return

    @functools.wraps(original)
    def _handle_exitstatus(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        if self.returncode:
            hooks.guarded(_note_child_exit)(self.pid, self.returncode)
        return result

    cls._handle_exitstatus = _handle_exitstatus


def _note_child_exit(pid: int, code: int) -> None:
    journal.open_in(hooks.live)
    journal.write("child_exit", pid=pid, code=code)


def _chain_of(error: BaseException) -> list[BaseException]:
    chain: list[BaseException] = []
    link = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    while link is not None and len(chain) < 10 and link not in chain:
        chain.append(link)
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return chain


def _name_of(error: BaseException) -> str:
    cls = type(error)
    return cls.__qualname__ if cls.__module__ in ("builtins", "__main__") else f"{cls.__module__}.{cls.__qualname__}"
