"""The live table of pools."""

from __future__ import annotations

from typing import Any

import pytest

from rankwise.cli import top
from rankwise.cli.main import main

MODEL = {
    "state": "ok", "queued": 3, "running": 1, "completed": 40, "failed": 2, "mean_batch": 2.25, "p50_s": 0.0015, "p99_s": None,
    "memory_bytes": 2_500_000, "replicas": 1, "rerun": 0, "evictions": 5, "finding": "",
}  # fmt: skip
WORKER = {"number": 0, "pid": 77, "device": "cpu", "running": "", "running_s": 0.0, "ready": True, "holds": ["net"]}


def pool(**models: dict[str, Any]) -> dict[str, Any]:
    lanes = {"inputs_used_bytes": 500_000, "inputs_bytes": 4_000_000}
    return {"pid": 42, "plan": "2 workers", "models": models, "workers": [WORKER], "lanes": lanes, "restarts": 3}


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    def show(*found: dict[str, Any], argv: tuple[str, ...] = ("--once",)) -> str:
        by_name = {f"pool-{stats['pid']}": stats for stats in found}
        monkeypatch.setattr("rankwise.pool.stats.pools", lambda: [(stats["pid"], name) for name, stats in by_name.items()])
        monkeypatch.setattr("rankwise.pool.stats.look", by_name.get)
        assert top.main(list(argv)) == 0
        return capsys.readouterr().out

    return show


def test_each_model_has_a_row_and_each_worker_a_line(shown: Any) -> None:
    lines = shown(pool(net=MODEL)).splitlines()

    assert lines[0] == "pool of process 42: 2 workers"
    assert lines[2].split() == ["net", "3", "1", "40", "2", "2.2", "1.50", "-", "2.5", "1", "0", "5"]
    assert lines[3:] == ["worker 0 (pid 77, cpu): idle; holds net", "lanes 0.5 of 4.0 MB, 3 workers replaced"]


def test_what_is_not_known_yet_is_a_dash_and_a_failed_model_says_so(shown: Any) -> None:
    failed = {**MODEL, "state": "failed", "finding": "RW801 cannot be built", "mean_batch": None, "p50_s": None, "memory_bytes": None}
    out = shown(pool(net=failed))

    assert "net (failed)" in out and out.splitlines()[2].split().count("-") == 4 and "RW801 cannot be built" in out


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        ({"running": "net", "running_s": 1.5}, "runs net for 1.50 s"),
        ({"ready": False}, "starts"),
        ({"pid": None}, "worker 0 (cpu): idle"),
        ({"holds": []}, "holds nothing"),
    ],
)
def test_what_a_worker_does(shown: Any, facts: dict[str, Any], text: str) -> None:
    assert text in shown({**pool(net=MODEL), "workers": [{**WORKER, **facts}]})


def test_the_pools_of_one_process_can_be_asked_for(shown: Any) -> None:
    both = pool(net=MODEL), {**pool(net=MODEL), "pid": 43}

    assert "process 42" in shown(*both) and "process 42" not in shown(*both, argv=("--once", "--pid", "43"))
    assert '"pid": 43' in shown(*both, argv=("--json", "--pid", "43"))
    assert shown() == "no pool is running here\n"


def test_a_process_without_a_pool_is_a_finding(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--pid", "1"]) == 2
    assert "process 1 has no pool here" in capsys.readouterr().err
