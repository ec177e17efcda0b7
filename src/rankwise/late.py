"""Looks up a package's names on first use, so that importing the package stays quick and imports no torch."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def late_names(package: str, homes: Mapping[str, tuple[str, ...]]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package; `homes` has the modules its names live in, with the names."""
    found = {name: module for module, names in homes.items() for name in names}

    def look_up(name: str) -> Any:
        if name not in found:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(found[name]), name)

    return look_up, lambda: sorted(found)
