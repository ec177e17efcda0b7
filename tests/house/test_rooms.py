"""Rooms look down only, and torch is imported only where it may be."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.house.imports import SRC, imported_names, packages_imported_by, room_of, rooms_imported_by, source_files

FLOOR = {"errors", "findings", "ranks", "sizes", "stages"}
MAY_IMPORT = {
    "errors": {"findings", "stages"},
    "findings": set(),
    "ranks": set(),
    "sizes": set(),
    "stages": set(),
    "causes": FLOOR,
    "evidence": FLOOR,
    "probe": set(),
    "diagnose": FLOOR | {"evidence", "causes"},
    "launch": FLOOR | {"evidence", "diagnose"},
    "preflight": FLOOR | {"causes"},
    "lint": FLOOR | {"causes"},
    "train": FLOOR | {"causes"},
    "weights": FLOOR | {"causes"},
    "pool": FLOOR | {"weights"},
    "predict": FLOOR | {"pool", "weights", "causes"},
    "serve": FLOOR | {"pool"},
    "report": FLOOR | {"evidence", "causes"},
    "cli": FLOOR | {"launch", "preflight", "lint", "predict", "serve", "report", "weights", "pool", "causes", "evidence", "diagnose"},
    "__init__": FLOOR | {"train", "weights", "pool", "predict", "serve"},
    "__main__": {"cli"},
}
# Files outside these rooms must work, and answer --help, without loading torch.
TORCH_ROOMS = {"probe", "train", "weights"}
TORCH_FILES = {
    "preflight/torch_",
    "pool/child",
    "predict/child.py",
    "predict/gathering.py",
    "launch/courier.py",
}  # these run in processes of their own

RELATIVE = [str(path.relative_to(SRC)) for path in source_files()]


@pytest.mark.parametrize("name", RELATIVE)
def test_rooms_only_look_down(name: str) -> None:
    path = SRC / name
    room = room_of(path)
    assert room in MAY_IMPORT, f"{name} stands in a room the design does not know"
    upward = rooms_imported_by(path) - MAY_IMPORT[room] - {room}
    assert not upward, f"{name} imports {sorted(upward)}; {room} may import {sorted(MAY_IMPORT[room])}"


@pytest.mark.parametrize("name", [name for name in RELATIVE if not name.startswith("probe/")])
def test_imports_are_absolute(name: str) -> None:
    relative = [module for module in imported_names(SRC / name) if module.startswith(".")]
    assert not relative, f"{name} imports {relative}; absolute imports keep the directions checkable"


@pytest.mark.parametrize("name", RELATIVE)
def test_torch_is_imported_only_where_it_may_be(name: str) -> None:
    allowed = room_of(SRC / name) in TORCH_ROOMS or any(name.startswith(prefix) for prefix in TORCH_FILES)
    assert allowed or "torch" not in packages_imported_by(SRC / name), f"{name} imports torch"


@pytest.mark.parametrize("name", [name for name in RELATIVE if name.startswith("probe/")])
def test_the_probe_needs_nothing_but_the_standard_library_and_torch(name: str) -> None:
    beside = {"rankwise_probe_start"}  # stands next to sitecustomize, on the same path
    foreign = packages_imported_by(SRC / name) - set(sys.stdlib_module_names) - {"torch"} - beside
    assert not foreign, f"{name} imports {sorted(foreign)}, which the user's environment need not have"
    assert not rooms_imported_by(SRC / name), f"{name} imports rankwise, which the user's environment need not have"


@pytest.mark.parametrize("name", [f"{room}.py" for room in sorted(FLOOR) if (SRC / f"{room}.py").exists()])
def test_the_floor_needs_only_the_standard_library(name: str) -> None:
    foreign = packages_imported_by(SRC / name) - set(sys.stdlib_module_names)
    assert not foreign, f"{name} imports {sorted(foreign)}"


def test_an_upward_import_is_caught(tmp_path: Path) -> None:
    path = tmp_path / "sly.py"
    path.write_text("def f():\n    from rankwise.cli import main\n    import torch.distributed\n")

    assert rooms_imported_by(path) == {"cli"}
    assert packages_imported_by(path) == {"torch"}
