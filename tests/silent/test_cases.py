"""Every kind of wrong training is found, with its ranks and its line; and the same script put right is left alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.families import mostly_live
from tests.silent.stage import CASES, Host, findings_of, load_truth, marked_line, said_by

SCRIPTS = sorted(CASES.glob("*.py"))
FAULTS = [script for script in SCRIPTS if not script.stem.startswith("right_")]


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    host = Host(tmp_path_factory.mktemp("live"))
    yield host
    host.close()


@pytest.mark.parametrize("script", mostly_live(FAULTS, 15), ids=lambda script: script.stem)
def test_the_fault_is_found(script: Path, host: Host, tmp_path: Path) -> None:
    truth = load_truth(script)

    found, _job = findings_of(host, script, True, tmp_path, truth.get("world", 2))

    assert found, "nothing was found"
    first = found[0]
    assert first.code == truth["code"], [f"{f.code} {f.summary}" for f in found]
    named = {place.rank for place in first.culprits}
    assert named and named <= set(truth["ranks"]), named
    assert all(any(word in said_by(first) for word in group) for group in truth["words"]), said_by(first)
    line = marked_line(script)
    assert line is None or line in {place.line for place in first.culprits}, [str(place) for place in first.culprits]


@pytest.mark.parametrize("script", mostly_live(SCRIPTS, 18), ids=lambda script: script.stem)
def test_the_same_done_right_is_left_alone(script: Path, host: Host, tmp_path: Path) -> None:
    truth = load_truth(script)

    found, _job = findings_of(host, script, False, tmp_path, truth.get("world", 2))

    alarms = [f"{f.code} {f.severity} {f.summary} {f.why}" for f in found if f.severity != "info" or f.code == truth.get("code")]
    assert not alarms
