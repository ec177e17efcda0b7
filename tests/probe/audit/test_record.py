"""What the audit reads, and for how much of the time: tensors of a GPU only where asked for, fewer looks once its share is used up."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import rankwise
from rankwise.probe.audit import record

PROBE = Path(rankwise.__file__).parent


ASK = """
import sys
from types import SimpleNamespace
sys.path.insert(0, sys.argv[1])
from probe.audit import record
print([record.may_read(SimpleNamespace(device=SimpleNamespace(type=kind))) for kind in ("cpu", "cuda")])
"""


@pytest.mark.parametrize(("level", "answer"), [("light", "[True, False]"), ("full", "[True, True]")])
def test_a_tensor_of_a_gpu_is_read_only_where_all_is_asked_for(level: str, answer: str) -> None:
    ran = subprocess.run([sys.executable, "-c", ASK, str(PROBE)], env={"RANKWISE_AUDIT": level}, capture_output=True, text=True, timeout=60)

    assert ran.stdout.strip() == answer, ran.stderr


WAIT = """
import sys
from types import SimpleNamespace
sys.path.insert(0, sys.argv[1])
import torch
from probe.audit import fingerprints
pending, calls = fingerprints.PendingNumbers([torch.ones(2)]), []
pending._events.append(SimpleNamespace(query=lambda: False, synchronize=lambda: calls.append("waited")))
print(pending.have_arrived(), pending.numbers(), calls)
"""


def test_numbers_of_a_gpu_are_never_read_before_they_have_arrived() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", WAIT, str(PROBE)], env={"RANKWISE_AUDIT": "full"}, capture_output=True, text=True, timeout=120
    )

    assert ran.stdout.strip() == "False [[1.0, 1.0]] ['waited']", ran.stderr


SECOND_NS = 1_000_000_000


spent_by_thread = [1]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A clock that stands still until it is moved, and a record that has spent nothing."""
    now = [10 * SECOND_NS]
    monkeypatch.setattr(record.time, "perf_counter_ns", lambda: now[0])
    monkeypatch.setattr(record.time, "thread_time_ns", lambda: spent_by_thread[0])
    for name, value in {
        "LEVEL": "light",
        "_began_ns": now[0],
        "_spent_ns": 0,
        "_coarse": 0,
        "_changed_ns": 0,
        "_look_began_ns": 0,
    }.items():
        monkeypatch.setattr(record, name, value)
    monkeypatch.setattr(record, "write", lambda *args, **facts: None)
    return now


@record.budgeted
def look(n: int, cost_ns: int) -> bool:
    is_looked_at = record.is_sampled(n)
    spent_by_thread[0] += cost_ns if is_looked_at else 0
    return is_looked_at


def test_costly_looks_become_rare_from_the_first_steps_on(clock: list[int]) -> None:
    """A look of 40 ms at steps of 30 ms: without a limit the first sixteen would cost more than the steps."""
    spent = 0
    for n in range(1000):
        clock[0] += 30_000_000
        spent += 40_000_000 * look(n, 40_000_000)

    allowed = record._SHARE * 1000 * 30_000_000
    assert spent <= record._ALLOWED_NS + allowed + 2 * 40_000_000


def test_cheap_looks_stay_as_they_were(clock: list[int]) -> None:
    looked = 0
    for n in range(256):
        clock[0] += 30_000_000
        looked += look(n, 200_000)

    assert looked == 16 + 4 * 8


def test_a_rank_that_is_throttled_looks_at_a_part_of_what_others_look_at(clock: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    for coarse in (0, 2, 5):
        monkeypatch.setattr(record, "_coarse", coarse)
        found[coarse] = {n for n in range(5000) if record.is_sampled(n)}

    assert found[5] < found[2] < found[0]
    assert 0 in found[5]


def test_it_looks_more_often_again_when_there_is_room(clock: list[int]) -> None:
    for n in range(4):
        look(n, 500_000_000)
    assert record._coarse > 0
    clock[0] += 1000 * SECOND_NS
    for _ in range(40):
        clock[0] += 10 * SECOND_NS
        look(0, 0)

    assert record._coarse == 0


def test_after_the_first_steps_only_those_are_followed_that_are_looked_at(clock: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "is_step_observed", True)
    followed = []
    for n in range(2000):
        record.choose_step(n)
        followed += [n] * record.is_step_observed

    assert followed[:200] == list(range(200)) and len(followed) < 230
    assert {n for n in range(2000) if record.is_sampled(n)} <= set(followed)


def test_a_step_is_followed_where_any_optimizer_is_looked_at(clock: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "is_step_observed", True)
    record.choose_step(1001, [1001, 1003])
    assert not record.is_step_observed
    record.choose_step(1024, [1024, 1003])
    assert record.is_step_observed
