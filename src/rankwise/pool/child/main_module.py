"""The user's script inside a worker, for a `build` that is defined in it."""

from __future__ import annotations

import runpy
import sys
import types

_path = ""
is_importing = False  # while true, a new Pool would be one that a script without a main guard is about to start


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
    finally:
        is_importing = False
    sys.modules["__main__"] = sys.modules["__mp_main__"] = module
