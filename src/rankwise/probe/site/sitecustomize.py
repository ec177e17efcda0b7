"""Python imports this at start in every process of a watched job: starts the probe, then makes way for the user's own sitecustomize.

Only found because `rankwise run` puts this folder first on PYTHONPATH; the folder is taken off `sys.path` again at once.
"""

import os
import sys


def _start_probe(here: str) -> None:
    live = os.environ.get("RANKWISE_PROBE")
    if not live or not os.path.isdir(live):
        return
    import importlib.util

    home = os.path.dirname(here)
    # Loaded by path and under its own name: the user's interpreter need not have rankwise installed.
    spec = importlib.util.spec_from_file_location("_rankwise_probe", os.path.join(home, "__init__.py"), submodule_search_locations=[home])
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["_rankwise_probe"] = module
    spec.loader.exec_module(module)
    module.start(live)


def _make_way(here: str) -> None:
    if here in sys.path:
        sys.path.remove(here)
    from importlib.machinery import PathFinder

    spec = PathFinder.find_spec("sitecustomize", [p for p in sys.path if os.path.abspath(p or ".") != here])
    if spec is None or spec.loader is None:
        return
    import importlib.util

    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


_here = os.path.dirname(os.path.abspath(__file__))
try:
    _start_probe(_here)
except Exception:  # the probe must never keep a process from starting
    pass
_make_way(_here)
