"""Python imports this at start in every process of a watched job: starts the probe, then makes way for the user's own sitecustomize.

Only found because `rankwise run` puts this folder first on PYTHONPATH; the folder is taken off `sys.path` again at once.
"""

import _frozen_importlib  # what `importlib.util` is made of, but loaded already: a process without torch must not pay for more
import _frozen_importlib_external
import os
import sys


def _start_probe(here: str) -> None:
    live = os.environ.get("RANKWISE_PROBE")
    if not live or not os.path.isdir(live):
        return
    home = os.path.dirname(here)
    # Loaded by path and under its own name: the user's interpreter need not have rankwise installed.
    spec = _frozen_importlib_external.spec_from_file_location(
        "_rankwise_probe", os.path.join(home, "__init__.py"), submodule_search_locations=[home]
    )
    if spec is None or spec.loader is None:
        return
    module = _frozen_importlib.module_from_spec(spec)
    sys.modules["_rankwise_probe"] = module
    spec.loader.exec_module(module)
    module.start(live)


def _make_way(here: str) -> None:
    """Import again, now without us: finds the user's own, or raises what Python's start expects where there is none."""
    if here not in sys.path:  # found in some other way, and would be again, for ever
        raise ModuleNotFoundError("No module named 'sitecustomize'", name="sitecustomize")
    sys.path.remove(here)
    sys.modules.pop("sitecustomize", None)
    __import__("sitecustomize")


_here = os.path.dirname(os.path.abspath(__file__))
try:
    _start_probe(_here)
except Exception:  # the probe must never keep a process from starting
    pass
_make_way(_here)
