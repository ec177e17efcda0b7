"""Tests mirror the source: the test of `x/y.py` is `tests/x/test_y.py`. What crosses modules is named after the behaviour it holds."""

from __future__ import annotations

from pathlib import Path

from tests.house.imports import ROOT, SRC, source_files

# Of no single room: real scripts and their faults, GPUs, the house itself.
ROOMS_OF_BEHAVIOURS = {"gauntlet", "gpu", "house", "silent"}
BEHAVIOURS = {
    "": {"typing"},
    "broker": {"live", "network"},
    "cluster": {"commands", "node_sizes", "options"},
    "diagnose": {"simulation"},
    "evidence": {"explain_fuzz"},
    "launch": {"adversity", "exit_codes", "other_launchers", "signals", "torchrun", "verdict"},
    "offline": {"failing", "kills", "memory", "object_stores", "wrong_inputs"},
    "pool": {"load", "stopped_time"},
    "pool/api": {"arguments", "limits", "load_unload", "notebook", "reloading", "signals"},
    "pool/memory": {"containers", "sameness"},
    "pool/schedule": {"parts"},
    "pool/workers": {"blame", "random_numbers"},
    "preflight": {"judging", "lab", "lab_many", "lab_parity", "meeting"},
    "probe": {"broken", "cost", "manners", "torch", "tracebacks"},
    "report": {"html_browser"},
    "serve": {"clients", "hostile", "oracle", "reloading", "tritonclient"},
    "serve/fronts": {"tls"},
    "serve/page": {"browser"},
    "train": {"elastic", "equality", "example", "session_lab", "session_launchers"},
    "weights": {"bad_files", "corpus"},
}


def test_every_file_of_tests_mirrors_a_module_or_is_a_known_behaviour() -> None:
    sources = {_name(path.relative_to(SRC), path.stem.removeprefix("_")) for path in source_files()}
    behaviours = {f"{room}/{name}".removeprefix("/") for room, names in BEHAVIOURS.items() for name in names}
    tests = [path.relative_to(ROOT / "tests") for path in (ROOT / "tests").rglob("test_*.py") if "cases" not in path.parts]
    wanted = {_name(path, path.stem.removeprefix("test_")): path for path in tests if path.parts[0] not in ROOMS_OF_BEHAVIOURS}
    offenders = sorted(str(path) for name, path in wanted.items() if name not in sources | behaviours)

    assert not offenders, f"no module of that name, and no behaviour listed here: {', '.join(offenders)}"
    assert not behaviours - wanted.keys(), "listed here, but there is no such file"


def _name(path: Path, stem: str) -> str:
    return path.with_name(stem).as_posix()
