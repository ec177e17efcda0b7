"""Sees the processes this one starts: multiprocessing's as they begin and end, and the exit code of all.

Loaded in every process that imports `subprocess` or `multiprocessing`, with or without torch, so it imports only what is loaded anyway.
"""

from __future__ import annotations

import os
import sys

from . import hooks, process, recording

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

_is_followed = False  # whether children of this process are followed too
_handled_before: BaseException | None = None


def watch_start(module: ModuleType) -> None:
    """Begin to record in every child that multiprocessing starts, whatever its class does."""
    module.BaseProcess._bootstrap = hooks.wrap(module.BaseProcess._bootstrap, hooks.guarded(_begin))


def _begin(*_: Any, **__: Any) -> None:
    global _is_followed, _handled_before
    if "torch" in sys.modules or process.is_recording_or_forked() or "--multiprocessing-fork" in sys.orig_argv:
        recording.start()
        recording.separate_output()
    _handled_before = sys.exc_info()[1]  # set where the parent forked inside an `except`
    _follow()
    if not _is_followed:  # else the registration is inherited from a parent that is itself such a child
        _is_followed = True
        from multiprocessing import util

        util.register_after_fork(hooks, _follow)  # multiprocessing clears its finalizers in a forked child


def _follow(_: ModuleType | None = None) -> None:
    """Have `_end` called in the `finally` around the child's `run()`, where its exception can be seen without a frame of ours in it."""
    from multiprocessing import util

    util.Finalize(None, hooks.guarded(_end), exitpriority=1_000_000)


def _end() -> None:
    error = sys.exc_info()[1]
    if error is _handled_before:
        error = None
    if error is not None or process.is_recording():
        from . import exits

        exits.note_child_end(error)


def watch_torchrun(module: ModuleType) -> None:
    """Note which process torchrun starts as which rank: a process that is not Python, or ends at once, cannot note it itself."""
    module.SubprocessHandler._popen = hooks.wrap(module.SubprocessHandler._popen, after=hooks.guarded(_note_rank))


def _note_rank(_frame: Any, child: Any, _handler: Any, _command: Any, env: dict[str, str]) -> None:
    from . import journal

    journal.write("child_start", pid=child.pid, env=journal.rank_environment(env))


def watch_poll(module: ModuleType) -> None:
    module.Popen.poll = hooks.surround(module.Popen.poll, _running_process, hooks.guarded(_note_first_code))


def _running_process(_frame: Any, args: Any, _kwargs: Any) -> Any:
    """The process that is polled, unless its end is known already."""
    return args[0] if args[0].returncode is None else None


def _note_first_code(child: Any, code: int | None, _error: BaseException | None) -> None:
    if child is not None and code is not None:
        _note_code(child.pid, code)


def watch_subprocess(module: ModuleType) -> None:
    module.Popen._handle_exitstatus = hooks.wrap(module.Popen._handle_exitstatus, after=hooks.guarded(_note_subprocess))


def _note_subprocess(_frame: Any, _result: None, child: Any, *_: Any, **__: Any) -> None:
    if child.returncode is not None:
        _note_code(child.pid, child.returncode)


def _note_code(pid: int, code: int) -> None:
    """Note an exit code: failures always, success only of a process with a journal, whose own account of its end it confirms."""
    if code or os.path.exists(f"{process.live}/p-{pid}.jsonl"):
        from . import journal

        journal.write("child_exit", pid=pid, code=code)
