"""GPU facts without a GPU: what is said where the way to ask is broken."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from rankwise.preflight.gpus import gpu_facts


@pytest.mark.parametrize("left", [None, ModuleType("pynvml")], ids=["not installed", "its import failed in another thread"])
def test_without_nvml_it_is_said(monkeypatch: pytest.MonkeyPatch, left: ModuleType | None) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", left)
    monkeypatch.setattr(Path, "exists", lambda self: True)

    assert gpu_facts() == {"blind": "nvidia-ml-py is not installed"}
