"""The audit keeps to its share of the time: fewer looks once it is used up, and nothing that goes through all parameters at every call."""

from __future__ import annotations

import weakref

import pytest
import torch

from rankwise.probe.audit import record, reduces

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


@record.paid
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


def test_parameters_are_not_gone_through_for_every_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a check that all ranks have the same weights: a broadcast of a copy of each."""
    parameters = [torch.nn.Parameter(torch.ones(3)) for _ in range(400)]
    walks = []

    def walk() -> list[tuple[str, torch.nn.Parameter]]:
        walks.append(1)
        return [(str(i), p) for i, p in enumerate(parameters)]

    monkeypatch.setattr(reduces, "_parameters", walk)
    monkeypatch.setattr(reduces, "_misses", 0)
    copies = [p.detach().clone() for p in parameters]

    assert not any(reduces._parameter_label(copy) for copy in copies)
    assert len(walks) < 60


def test_gradients_reduced_one_by_one_are_all_labelled(monkeypatch: pytest.MonkeyPatch) -> None:
    parameters = [torch.nn.Parameter(torch.ones(3)) for _ in range(50)]
    monkeypatch.setattr(reduces, "optimized", [weakref.ref(p) for p in parameters])
    monkeypatch.setattr(reduces, "_misses", 0)
    for _ in range(3):
        for p in parameters:
            p.grad = torch.ones(3)
        labels = [reduces._parameter_label(p.grad) for p in parameters if p.grad is not None]
        assert labels == [f"gradient of parameter {i}" for i in range(50)]


def test_after_the_first_steps_only_those_are_followed_that_are_looked_at(clock: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "is_awake", True)
    followed = []
    for n in range(2000):
        record.follow(n)
        followed += [n] * record.is_awake

    assert followed[:200] == list(range(200)) and len(followed) < 230
    assert {n for n in range(2000) if record.is_sampled(n)} <= set(followed)


def test_a_step_is_followed_where_any_optimizer_is_looked_at(clock: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "is_awake", True)
    record.follow(1001, [1001, 1003])
    assert not record.is_awake
    record.follow(1024, [1024, 1003])
    assert record.is_awake
