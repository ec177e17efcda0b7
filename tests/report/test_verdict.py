"""verdict.json: its shape, that it is written whole or not at all, and that anything can be read back without harm."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rankwise.evidence.records import JobEvidence, RankEvidence
from rankwise.findings import Finding, Place, Wait
from rankwise.report.finding_text import verdict_text
from rankwise.report.html import report_html
from rankwise.report.verdict import findings_of, seconds_of, verdict_dict, write_json_atomically

FINDING = Finding(
    "RW201",
    "skipped-collective",
    "error",
    True,
    "rank 1 never called all_reduce #13, which ranks 0, 2, 3 are waiting in",
    culprits=(Place(1, "node-a", 4242, "train.py", 88, "train_epoch"),),
    waiting=(Wait(0, "all_reduce", "default", 13, "train.py", 91, "train_epoch"),),
    why="because",
    next=("do this",),
    deadlock=True,
)


def test_has_the_shape_of_the_contract() -> None:
    verdict = verdict_dict("hung", 70, 4, 31.2, 8.4, [FINDING])

    assert {key: value for key, value in verdict.items() if key != "findings"} == {
        "schema": 1,
        "outcome": "hung",
        "exit_code": 70,
        "world_size": 4,
        "seconds": {"running": 31.2, "stuck_before_verdict": 8.4},
    }
    (found,) = verdict["findings"]
    assert {"code", "name", "severity", "certain", "summary", "culprits", "waiting", "why", "next"} <= set(found)
    assert found["culprits"] == [{"rank": 1, "host": "node-a", "pid": 4242, "file": "train.py", "line": 88, "function": "train_epoch"}]
    assert found["waiting"][0] == {
        "rank": 0,
        "op": "all_reduce",
        "group": "default",
        "seq": 13,
        "file": "train.py",
        "line": 91,
        "function": "train_epoch",
    }


def test_keeps_the_order_of_findings_and_leaves_unknowns_null() -> None:
    second = Finding("RW900", "unknown-cause", "warning", False, "no idea", culprits=(Place(),))

    verdict = verdict_dict("running", None, None, float("inf"), None, [FINDING, second])

    assert [found["code"] for found in verdict["findings"]] == ["RW201", "RW900"]
    assert set(verdict["findings"][1]["culprits"][0].values()) == {None}
    assert verdict["seconds"] == {"running": None, "stuck_before_verdict": None}


def test_comes_back_from_its_file_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "verdict.json"

    write_json_atomically(path, verdict_dict("hung", 70, 4, 31.2, 8.4, [FINDING]))

    verdict = json.loads(path.read_text())
    assert findings_of(verdict) == [FINDING]
    assert seconds_of(verdict, "running") == 31.2


def test_replaces_the_file_whole_and_for_the_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "verdict.json"
    path.write_text("old")
    inode = path.stat().st_ino

    write_json_atomically(path, {"name": "caf\udce9"})

    assert path.stat().st_ino != inode, "written in place: a reader could see half"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["verdict.json"]
    assert json.loads(path.read_text()) == {"name": "caf\udce9"}


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path: Path) -> None:
    path = tmp_path / "verdict.json"
    path.write_text("old")

    with pytest.raises(ValueError):
        write_json_atomically(path, {"seconds": float("nan")})

    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["verdict.json"]


@pytest.mark.parametrize(
    "findings",
    [
        None,
        "RW201",
        [None, 3, "x", [], {}],
        [{"code": "RW201"}],
        [{"code": "RW201", "name": "x", "severity": "fatal"}],
        [{"code": "RW201", "name": "x", "culprits": 5, "waiting": {"a": 1}, "next": "step"}],
        [{"code": "RW201", "name": "x", "culprits": [{"rank": "three", "line": [], "file": 7}, 9, None]}],
        [{"code": None, "name": {}, "summary": [1], "why": {"a": 2}, "certain": "maybe"}],
    ],
)
def test_reads_damaged_findings_without_harm(findings: Any) -> None:
    for finding in findings_of({"findings": findings}):
        assert all(place.rank is None and place.file is None for place in finding.culprits)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
_FIELDS = ("code", "name", "severity", "certain", "summary", "culprits", "waiting", "why", "next")
_FINDING = st.fixed_dictionaries({}, optional={field: _JSON | st.just("error") for field in _FIELDS})
_VERDICT = st.fixed_dictionaries(
    {"findings": st.lists(_FINDING | _JSON, max_size=3)},
    optional={"outcome": _JSON, "exit_code": _JSON, "world_size": _JSON, "seconds": _JSON},
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(_VERDICT)
def test_any_json_can_be_shown(verdict: dict[str, Any]) -> None:
    text = verdict_text(verdict, folder="runs/x", colour=False, width=80)

    assert "\x1b" not in text
    text.encode("utf-8")
    report_html(verdict, JobEvidence((), 0, 0, 2, 10.0, {0: RankEvidence(0)})).encode("utf-8")
