"""Rooms look down only, and torch is imported only where it may be."""

from __future__ import annotations

import ast
import graphlib
import sys
from pathlib import Path

import pytest

from tests.house.imports import SRC, import_graph, imported_names, packages_imported_by, room_of, rooms_imported_by, source_files

FLOOR = {"cgroups", "errors", "files", "findings", "late", "pyspy", "ranks", "sizes", "stages", "thaw", "version"}
MAY_IMPORT = {
    "cgroups": {"files"},
    "errors": {"findings", "stages"},
    "files": set(),
    "findings": {"thaw"},
    "late": set(),
    "pyspy": set(),
    "protocol": set(),
    "ranks": set(),
    "sizes": set(),
    "stages": set(),
    "thaw": set(),
    "version": set(),
    "causes": FLOOR,
    "evidence": FLOOR,
    "probe": set(),
    "source": FLOOR | {"evidence"},
    "diagnose": FLOOR | {"evidence", "causes", "meet", "source"},
    "meet": FLOOR,
    "launch": FLOOR | {"evidence", "diagnose", "causes", "meet"},
    "preflight": FLOOR | {"causes", "meet"},
    "train": FLOOR | {"causes", "meet"},
    "weights": FLOOR | {"causes"},
    "pool": FLOOR | {"weights", "causes"},
    "cluster": FLOOR | {"pool"},
    "offline": FLOOR | {"pool", "weights", "causes"},
    "serve": FLOOR | {"pool", "protocol"},
    "broker": FLOOR | {"pool", "protocol", "causes"},
    "report": FLOOR | {"evidence", "causes"},
    "cli": FLOOR
    | {
        "launch",
        "preflight",
        "offline",
        "serve",
        "broker",
        "report",
        "weights",
        "pool",
        "protocol",
        "causes",
        "evidence",
        "diagnose",
    },
    "__init__": FLOOR | {"train", "weights", "pool", "broker", "offline", "serve"},
    "__main__": {"cli"},
}
# Files outside these rooms must work, and answer --help, without loading torch.
TORCH_ROOMS = {"probe", "train", "weights"}
TORCH_FILES = {
    "preflight/torch_",
    "pool/workers/fork_server.py",
    "pool/workers/worker.py",
    "pool/workers/lanes.py",
    "pool/workers/model_building.py",
    "pool/workers/runner.py",
    "pool/workers/row_checks.py",
    "pool/inprocess.py",
    "offline/child.py",
    "offline/gathering.py",
    "launch/store_relay.py",
}  # these run in processes of their own

RELATIVE = [str(path.relative_to(SRC)) for path in source_files()]
PROBE = [name for name in RELATIVE if name.startswith("probe/")]


def test_rooms_only_look_down() -> None:
    unknown = [name for name in RELATIVE if room_of(SRC / name) not in MAY_IMPORT]
    assert not unknown, f"{unknown} stand in rooms the design does not know"
    assert not MAY_IMPORT.keys() - {room_of(SRC / name) for name in RELATIVE}, "rooms that are not there"
    upward = {name: rooms_imported_by(SRC / name) - MAY_IMPORT[room_of(SRC / name)] - {room_of(SRC / name)} for name in RELATIVE}
    assert {name: rooms for name, rooms in upward.items() if rooms} == {}


def test_each_room_says_in_a_few_lines_what_is_in_it() -> None:
    """And names some of its files, so that a reader knows where to begin."""
    words = {path.parent.name: ast.get_docstring(ast.parse(path.read_text())) or "" for path in SRC.glob("*/__init__.py")}
    wrong = {room: text for room, text in words.items() if not 3 <= len(text.splitlines()) <= 8 or text.count("`") < 4}

    assert words and not wrong


def test_no_file_imports_itself_by_way_of_others() -> None:
    """Imports for type checkers only, and inside functions, count as well: a reader follows them too."""
    graphlib.TopologicalSorter(import_graph()).prepare()  # raises CycleError, which shows the circle


def test_a_circle_is_caught() -> None:
    circle = import_graph()
    circle["rankwise.findings"].add("rankwise.errors")
    with pytest.raises(graphlib.CycleError, match="findings"):
        graphlib.TopologicalSorter(circle).prepare()


def test_the_rooms_of_the_pool_only_look_down() -> None:
    """Backends see all rooms; nothing but tests and `api/pool.py` sees a backend."""
    order = ["memory", "schedule", "transport", "workers"]
    for module, imported in import_graph().items():
        parts = module.split(".")
        if parts[:2] == ["rankwise", "pool"] and len(parts) > 3 and parts[2] in order:
            above = {name for name in imported for room in order[order.index(parts[2]) + 1 :] if name.startswith(f"rankwise.pool.{room}.")}
            assert not above, f"{module} imports {above}"


def test_imports_are_absolute() -> None:
    """They keep the directions checkable."""
    relative = {name: [module for module in imported_names(SRC / name) if module.startswith(".")] for name in RELATIVE if name not in PROBE}
    assert {name: modules for name, modules in relative.items() if modules} == {}


def test_torch_is_imported_only_where_it_may_be() -> None:
    others = [name for name in RELATIVE if room_of(SRC / name) not in TORCH_ROOMS and not name.startswith(tuple(TORCH_FILES))]
    assert [name for name in others if "torch" in packages_imported_by(SRC / name)] == []


def test_the_probe_needs_nothing_but_the_standard_library_and_torch() -> None:
    """Nothing else need be in the user's environment, rankwise included."""
    beside = {"rankwise_probe_start"}  # stands next to sitecustomize, on the same path
    known = {*sys.stdlib_module_names, "torch", *beside}
    foreign = {name: (packages_imported_by(SRC / name) - known) | rooms_imported_by(SRC / name) for name in PROBE}
    assert PROBE and {name: packages for name, packages in foreign.items() if packages} == {}


def test_the_floor_needs_only_the_standard_library() -> None:
    foreign = {room: packages_imported_by(SRC / f"{room}.py") - set(sys.stdlib_module_names) for room in FLOOR}
    assert {room: packages for room, packages in foreign.items() if packages} == {}


def test_an_upward_import_is_caught(tmp_path: Path) -> None:
    path = tmp_path / "sly.py"
    path.write_text("def f():\n    from rankwise.cli import main\n    import torch.distributed\n")

    assert rooms_imported_by(path) == {"cli"}
    assert packages_imported_by(path) == {"torch"}
