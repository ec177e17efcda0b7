"""Sees the processes this one starts: multiprocessing's as they begin and end, and everybody's exit code.

Loaded wherever `subprocess` or `multiprocessing` are, torch or not, so it imports nothing that is not loaded anyway.
"""

from __future__ import annotations

import os
import sys

from . import hooks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

_is_followed = False
_handled_before: BaseException | None = None


def watch_start(module: ModuleType) -> None:
    """In every child that multiprocessing starts, whatever its class does."""
    cls = module.BaseProcess
    original = cls._bootstrap

    def _bootstrap(self: Any, *args: Any, **kwargs: Any) -> Any:
        hooks.guarded(_begin)(self)
        try:
            return original(self, *args, **kwargs)
        except BaseException as error:
            hooks.step_aside(error)
            raise

    cls._bootstrap = _bootstrap


def _begin(process: Any) -> None:
    global _is_followed, _handled_before
    if "torch" in sys.modules or hooks.is_of_the_crew() or "--multiprocessing-fork" in sys.orig_argv:
        hooks.come_aboard()
        hooks.keep_output_apart()
        from . import journal

        journal.write("child", name=process.name)
    _handled_before = sys.exc_info()[1]  # where the parent forked inside an `except`
    _follow()
    if not _is_followed:  # else inherited from a parent that is itself such a child
        _is_followed = True
        from multiprocessing import util

        util.register_after_fork(hooks, _follow)  # a forked child throws away the finalizers it has so far


def _follow(_: ModuleType | None = None) -> None:
    """multiprocessing runs its finalizers in a `finally` around `run()`: what was raised is in flight then, and no frame of ours in it."""
    from multiprocessing import util

    util.Finalize(None, hooks.guarded(_end), exitpriority=1_000_000)


def _end() -> None:
    error = sys.exc_info()[1]
    if error is _handled_before:
        error = None
    if error is not None or hooks.is_aboard():
        from . import exits

        exits.note_child_end(error)


def watch_torchrun(module: ModuleType) -> None:
    """Which process torchrun starts as which rank: one that is not Python, or is gone at once, could not be asked."""
    cls = module.SubprocessHandler
    original = cls._popen

    def _popen(self: Any, args: Any, env: Any) -> Any:
        try:
            process = original(self, args, env)
        except BaseException as error:
            hooks.step_aside(error)
            raise
        hooks.guarded(_note_rank)(process.pid, env)
        return process

    cls._popen = _popen


def _note_rank(pid: int, env: dict[str, str]) -> None:
    from . import journal

    journal.write("child_start", pid=pid, env=journal.rank_environment(env))


def watch_poll(module: ModuleType) -> None:
    cls = module.Popen
    original = cls.poll

    def poll(self: Any, *args: Any, **kwargs: Any) -> Any:
        before = self.returncode
        try:
            code = original(self, *args, **kwargs)
        except BaseException as error:
            hooks.step_aside(error)
            raise
        if before is None and code is not None:
            hooks.guarded(_note_code)(self.pid, code)
        return code

    cls.poll = poll


def watch_subprocess(module: ModuleType) -> None:
    cls = module.Popen
    original = getattr(cls, "_handle_exitstatus", None)
    if original is None:
        return

    def _handle_exitstatus(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        if self.returncode is not None:
            hooks.guarded(_note_code)(self.pid, self.returncode)
        return result

    cls._handle_exitstatus = _handle_exitstatus


def _note_code(pid: int, code: int) -> None:
    """Failures always; success only of a process that spoke for itself, whose own words can then be checked."""
    if code or os.path.exists(f"{hooks.live}/p-{pid}.jsonl"):
        from . import journal

        journal.write("child_exit", pid=pid, code=code)
