"""Python imports this at start in every process of a watched job: starts the probe, then makes way for the user's own sitecustomize.

Only found because `rankwise run` puts this folder first on PYTHONPATH; the folder is taken off `sys.path` again at once.
"""

import os
import sys


def _make_way(here: str) -> None:
    """Import sitecustomize again without this folder: finds the user's own, or raises the ImportError that Python's start expects."""
    if here not in sys.path:  # this file was found in another way, and importing again would find it for ever
        raise ModuleNotFoundError("No module named 'sitecustomize'", name="sitecustomize")
    sys.path.remove(here)
    sys.modules.pop("sitecustomize", None)
    __import__("sitecustomize")


try:
    import rankwise_probe_start  # type: ignore[import-not-found]  # noqa: F401  beside this file, which is first on the path
except Exception:
    pass
_make_way(os.path.dirname(os.path.abspath(__file__)))
