"""The user's script inside a worker, for a `build` or an input that is defined in it."""

from __future__ import annotations

import os
import runpy
import sys
import types
from typing import Any

_path = ""
is_importing = False  # while true, a new Pool would be one that a script without a main guard is about to start


def become_like_the_caller(spec: dict[str, Any]) -> None:
    """Imports find here what they find where the pool is. In that process itself nothing of it is wanted: scripts would run twice."""
    for folder in reversed(spec["path"]):
        if folder not in sys.path:
            sys.path.insert(0, folder)
    if os.path.isdir(spec["cwd"]):  # on another machine it need not be there; then Ray has put this process where it should be
        os.chdir(spec["cwd"])
    if spec["main"]:
        become(spec["main"])
    elif spec["script"]:
        become_when_asked(spec["script"])


def become(path: str) -> None:
    """Run the script once under another name, as multiprocessing does, so that its functions can be found."""
    global is_importing, _path
    if _path == path:
        return
    _path = path
    module = types.ModuleType("__mp_main__")
    is_importing = True
    try:
        module.__dict__.update(runpy.run_path(path, run_name="__mp_main__"))
    except BaseException:
        _path = ""  # whoever asks next is told the same
        raise
    finally:
        is_importing = False
    sys.modules["__main__"] = sys.modules["__mp_main__"] = module


def become_when_asked(path: str) -> None:
    """Most pools never need the script: it runs when an input names something of it."""
    if not _path:
        sys.modules["__main__"] = sys.modules["__mp_main__"] = _Unread(path)


class _Unread(types.ModuleType):
    """Stands for the script until somebody looks for one of its names."""

    def __init__(self, path: str) -> None:
        super().__init__("__main__")
        self.__file__ = path

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or is_importing:
            raise AttributeError(name)
        become(str(self.__file__))
        return getattr(sys.modules["__main__"], name)
