"""Loads the probe by path and under its own name: the user's interpreter need not have rankwise installed."""

import _frozen_importlib  # already loaded, unlike `importlib.util`: a process without torch must not pay for an import
import _frozen_importlib_external
import os
import sys


def start_probe() -> None:
    """Start the probe once per process, whether it was found by PYTHONPATH or by the .pth file of an installed rankwise."""
    live = os.environ.get("RANKWISE_PROBE")
    if not live or "_rankwise_probe" in sys.modules or not os.path.isdir(live):
        return
    home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    spec = _frozen_importlib_external.spec_from_file_location(
        "_rankwise_probe", os.path.join(home, "__init__.py"), submodule_search_locations=[home]
    )
    if spec is None or spec.loader is None:
        return
    module = _frozen_importlib.module_from_spec(spec)
    sys.modules["_rankwise_probe"] = module
    spec.loader.exec_module(module)
    module.start(live)


try:
    start_probe()
except Exception:  # the probe must never keep a process from starting
    pass
