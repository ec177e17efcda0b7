"""Models whose rows depend on each other are noticed, whatever way they do it in, and not batched; others are not taken for such."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from tests.families import mostly_live

torch = pytest.importorskip("torch")

from rankwise.pool import Model, Pool  # noqa: E402
from rankwise.pool.transport.connection import UNBATCHABLE  # noqa: E402
from rankwise.pool.workers.model_building import BuiltModel  # noqa: E402
from rankwise.pool.workers.row_checks import RowChecker, differences, largest  # noqa: E402
from rankwise.pool.workers.runner import Runner  # noqa: E402
from tests.pool.models import DEPENDENT, INDEPENDENT  # noqa: E402

NUMBERS = torch.manual_seed(3)
ROWS = [torch.randn(1, 6, generator=NUMBERS) * torch.tensor([1.0] * (1 + i % 6) + [0.0] * (5 - i % 6)) for i in range(300)]
WAYS = ["submit", "map", "cut"]
LATER = [row + (1000 if i >= 150 else 0) for i, row in enumerate(ROWS)]


def is_close(a: Any, b: Any, part: float) -> bool:
    return all(gap <= part * max(1e-6, size) for gap, size in zip(differences(a, b), largest(a)))


def same(a: Any, b: Any) -> bool:
    return is_close(a, b, 1e-2) and (not isinstance(a, dict) or a.get("largest") == b.get("largest"))


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    """Each model once for each way to use it: one that was found out stays so."""
    names = [(name, way) for name in DEPENDENT for way in WAYS] + [(name, "submit") for name in INDEPENDENT]
    models = {f"{name}, {way}": Model("tests.pool.models:looking", args=(name,), max_batch=16, max_delay_ms=5) for name, way in names}
    with Pool(models, workers=2) as pool:
        yield pool


@pytest.mark.parametrize("name", [name for name in DEPENDENT if name != "later"])
@pytest.mark.parametrize("way", mostly_live(WAYS))
def test_rows_that_depend_on_each_other_are_never_given_away(pool: Pool, name: str, way: str, caplog: pytest.LogCaptureFixture) -> None:
    model = f"{name}, {way}"
    requests = [torch.cat(ROWS[i : i + 50]) for i in range(0, 300, 50)] if way == "cut" else ROWS
    with caplog.at_level(logging.WARNING, "rankwise.pool"):
        if way == "map":
            found = list(pool.map(model, requests))
        else:
            found = [future.result(60) for future in [pool.submit(model, x) for x in requests]]
    numbers = pool.stats()["models"][model]

    assert [i for i, (x, y) in enumerate(zip(requests, found)) if not same(y, DEPENDENT[name](x))] == []
    assert numbers["max_batch"] == 1 and numbers["finding"].startswith(f"RW811 model {model!r} is not batched any more: ")
    assert any("RW811" in record.message and "check_rows" in record.message for record in caplog.records)


@pytest.mark.parametrize("name", INDEPENDENT)
def test_rows_that_do_not_are_batched(pool: Pool, name: str) -> None:
    model = f"{name}, submit"
    found = [future.result(60) for future in [pool.submit(model, row) for row in ROWS]]
    numbers = pool.stats()["models"][model]

    assert numbers["max_batch"] == 16 and numbers["finding"] is None and numbers["mean_batch"] > 4
    if name not in ("dropout", "noise"):
        assert all(is_close(y, INDEPENDENT[name](x.clone()), 0.05) for x, y in zip(ROWS, found))


@pytest.mark.live
def test_what_shows_only_later_is_noticed_then_and_nothing_is_wrong_from_then_on() -> None:
    is_known = False
    with Pool({"m": Model("tests.pool.models:looking", args=("later",), max_batch=16)}, workers=2) as pool:
        for _ in range(40):
            futures = [pool.submit("m", x) for x in LATER]
            found = [future.result(60) for future in futures]
            wrong = [i for i, (x, y) in enumerate(zip(LATER, found)) if not same(y, DEPENDENT["later"](x))]
            assert not wrong or not is_known
            if is_known:
                break
            is_known = pool.stats()["models"]["m"]["finding"] is not None

    assert is_known


def test_whoever_says_so_keeps_the_batches() -> None:
    with Pool({"m": Model("tests.pool.models:looking", args=("mean",), max_batch=16, check_rows=False)}, workers=1) as pool:
        futures = [pool.submit("m", row) for row in ROWS]
        for future in futures:
            future.result(60)
        numbers = pool.stats()["models"]["m"]

    assert numbers["max_batch"] == 16 and numbers["finding"] is None


@pytest.mark.parametrize("rows", [3, 4, 5, 16])
def test_a_small_first_batch_shows_a_slight_dependence_too(rows: int) -> None:
    """Three percent in a batch of four are not rounding."""
    runner, model = Runner(RowChecker()), BuiltModel("m", DEPENDENT["slight count"], torch.device("cpu"), 0)
    results = runner.run(model, [(row,) for row in ROWS[1 : rows + 1]], [1] * rows, lambda place: (ROWS[1 + place],))

    assert runner.flags & UNBATCHABLE
    assert all(ok and torch.allclose(value, row * 1.01) for (ok, value), row in zip(results, ROWS[1:]))


@pytest.mark.parametrize("rows", [3, 16])
def test_labels_that_many_rows_share_hide_no_dependence(rows: int) -> None:
    """Half of the rows above the median get the same alone, and both halves of a batch may have as many of them."""
    numbers, wrong = torch.Generator().manual_seed(1), 0
    for seed in range(200):
        checker, x = RowChecker(), torch.randn(rows, 6, generator=numbers)
        checker._random.seed(seed)
        model = BuiltModel("m", DEPENDENT["labels of the batch"], torch.device("cpu"), 0)
        results = Runner(checker).run(model, [(row[None],) for row in x], [1] * rows, lambda place: (x[place : place + 1],))  # noqa: B023
        wrong += any(bool(value) for _, value in results)

    assert not wrong


class Flips:
    """An answer that hangs by a hair: it comes out differently for one row in a batch of a certain size, now and then."""

    def __init__(self, often: bool) -> None:
        self.often, self.calls, self.rows = often, 0, 0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        labels = (x[:, 0] > 0).long()
        if len(x) == 8 and bool((x[3] == 7).all()) and (self.often or self.calls > 5):
            labels[3] = 1 - labels[3]
        return labels


@pytest.mark.parametrize("often", [False, True])
def test_a_single_answer_that_differs_is_not_given_away_and_forgiven_once(often: bool) -> None:
    runner, flips = Runner(RowChecker()), Flips(often)
    model = BuiltModel("m", flips, torch.device("cpu"), 0)
    is_unbatched = False
    for i in range(12):
        x = torch.arange(16.0).view(8, 2) + i
        if often or i == 2:
            x[3] = 7
        results = runner.run(model, [(row[None],) for row in x], [1] * 8, lambda place: (x[place : place + 1],))  # noqa: B023
        is_unbatched = is_unbatched or bool(runner.flags & UNBATCHABLE)

        assert [int(value) for ok, value in results if ok] == (x[:, 0] > 0).long().tolist()

    assert is_unbatched is often


def test_integers_do_not_become_floating_point_beside_another_row() -> None:
    """One row of another type is no rounding, and what rows give one by one is not joined to one type."""
    model = BuiltModel("m", lambda x: x.long() if (x > 0).any() else x * 2, torch.device("cpu"), 0)
    x = torch.ones(8, 2)
    x[-1] = -1
    runner = Runner(RowChecker())
    results = runner.run(model, [(row[None],) for row in x], [1] * 8, lambda place: (x[place : place + 1],))

    assert [value.dtype for ok, value in results if ok] == [torch.int64] * 7 + [torch.float32]
    assert runner.flags & UNBATCHABLE


@pytest.mark.filterwarnings("ignore:ComplexHalf support")
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu, torch.complex32, torch.uint16])
def test_types_that_torch_only_stores_are_batched(dtype: torch.dtype) -> None:
    x = torch.rand(8, 2).to(dtype)
    runner, model = Runner(RowChecker()), BuiltModel("m", lambda x: x.clone(), torch.device("cpu"), 0)
    ((ok, value),) = runner.run(model, [(x,)], [8], lambda place: (x,))

    assert ok and not runner.flags & UNBATCHABLE
    assert value.dtype is dtype and torch.equal(value.view(torch.uint8), x.view(torch.uint8))


def test_rows_that_torch_cannot_cut_run_one_by_one() -> None:
    parts = torch.rand(8, 2).split(2)
    runner, model = Runner(RowChecker()), BuiltModel("m", lambda x: x.to_sparse(), torch.device("cpu"), 0)
    results = runner.run(model, [(part,) for part in parts], [2] * 4, lambda place: (parts[place],))

    assert runner.flags & UNBATCHABLE
    assert [ok and torch.equal(value.to_dense(), part) for (ok, value), part in zip(results, parts)] == [True] * 4


def test_looking_takes_a_small_part_of_the_time() -> None:
    """Counted, not timed: the model is called for the batches, for the first looks, and seldom beyond that."""
    calls: list[int] = []
    model = BuiltModel("m", lambda x: (calls.append(len(x)), sum(x[:, :1].sin() for _ in range(200)))[1], torch.device("cpu"), 0)
    runner = Runner(RowChecker())
    for _ in range(300):
        x = torch.rand(32, 4)
        runner.run(model, [(x,)], [32], lambda place: (x,))  # noqa: B023

    assert calls.count(32) < 310 and len(calls) < 400


def test_the_limit_is_for_each_call_of_the_model_not_for_all_looks_at_it() -> None:
    with Pool(
        {"m": Model("tests.pool.models:slow_rows", args=(0.3,), max_batch=4, limit_s=1.6, warmup=torch.zeros(1, 2))}, workers=1
    ) as pool:
        # Nine calls, of all rows and of some, which take longer than the limit.
        assert torch.equal(pool.submit("m", torch.arange(8.0).view(4, 2)).result(60), 2 * torch.arange(8.0).view(4, 2))


NARROW, WIDE = torch.tensor([[1.0, 0.0, 0.0]]), torch.ones(1, 3)


@pytest.mark.parametrize("others", [[WIDE] * 7, [torch.cat([WIDE] * 7)]])
def test_a_single_row_of_another_width_stops_the_batches(others: list[torch.Tensor]) -> None:
    """Only one row differs, but the rows one by one do not make an output that could be given away instead."""
    runner, requests = Runner(RowChecker()), [torch.cat([NARROW, WIDE]), *others]
    model = BuiltModel("m", DEPENDENT["width"], torch.device("cpu"), 0)
    results = runner.run(model, [(x,) for x in requests], [len(x) for x in requests], lambda place: (requests[place],))

    assert runner.flags & UNBATCHABLE and [ok for ok, _ in results] == [True] * len(requests)


def test_requests_of_a_batch_that_failed_are_looked_at_by_themselves() -> None:
    def width_of_good_rows(x: torch.Tensor) -> torch.Tensor:
        if bool((x < 0).any()):
            raise ValueError("negative")
        return DEPENDENT["width"](x)  # type: ignore[no-any-return]

    runner, requests = Runner(RowChecker()), [torch.cat([NARROW, WIDE, WIDE]), -WIDE]
    results = runner.run(
        BuiltModel("m", width_of_good_rows, torch.device("cpu"), 0), [(x,) for x in requests], [3, 1], lambda place: (requests[place],)
    )

    assert runner.flags & UNBATCHABLE and [ok for ok, _ in results] == [True, False]


class OneBuffer:
    """Writes each answer to the memory of the one before, as captured graphs and hand-tuned code do."""

    def __init__(self, how: str) -> None:
        self._how = how
        self._buffer = torch.zeros(8, 6)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self._how == "a row fails" and bool((x[:, 0] < 0).any()):
            raise ValueError("negative")
        if self._how == "memory runs out" and len(x) > 2:
            raise MemoryError
        self._buffer[: len(x)] = x * 2 + (x.sum() if self._how == "rows depend" else 0)
        return self._buffer[: len(x)]


@pytest.mark.parametrize("rows", [[1] * 8, [8], [2, 1, 5]])
@pytest.mark.parametrize("how", ["looked at", "a row fails", "memory runs out", "rows depend"])
def test_a_model_that_uses_the_memory_of_its_answers_again_gives_each_request_its_own(how: str, rows: list[int]) -> None:
    x = torch.cat(ROWS[:8]).abs()
    x[-1] *= -1
    requests = [(part.clone(),) for part in x.split(rows)]
    runner, model = Runner(RowChecker()), BuiltModel("m", OneBuffer(how), torch.device("cpu"), 0)
    results = runner.run(model, requests, rows, lambda place: (x.split(rows)[place].clone(),))
    last = how != "a row fails"

    assert bool(runner.flags & UNBATCHABLE) is (how == "rows depend")
    assert [ok for ok, _ in results] == [True] * (len(rows) - 1) + [last]
    assert all(
        torch.equal(value, OneBuffer(how)(part)) for (ok, value), part in zip(results, x.split(rows)) if ok and how != "memory runs out"
    )
    assert all(torch.equal(value, part * 2) for (ok, value), part in zip(results, x.split(rows)) if how == "memory runs out")


@pytest.mark.parametrize("how", ["a row fails", "memory runs out", "looked at"])
@pytest.mark.parametrize("rows", [[1] * 8, [8]])
def test_what_stands_beside_the_rows_is_what_it_was_whenever_they_run_again(how: str, rows: list[int]) -> None:
    def counting(x: torch.Tensor, seen: set[int]) -> torch.Tensor:
        seen.add(len(seen))
        if how == "a row fails" and bool((x < 0).any()):
            raise ValueError("negative")
        if how == "memory runs out" and len(x) > 2:
            raise MemoryError
        return x + len(seen)

    x = torch.cat(ROWS[:8]).abs()
    x[-1] *= -1
    runner, model = Runner(RowChecker()), BuiltModel("m", counting, torch.device("cpu"), 0)
    results = runner.run(model, [(part, {0}) for part in x.split(rows)], rows, lambda place: (x.split(rows)[place], {0}))

    assert not runner.flags & UNBATCHABLE and [ok for ok, _ in results[:-1]] == [True] * (len(rows) - 1)
    assert all(torch.equal(value, part + 2) for (ok, value), part in zip(results, x.split(rows)) if ok)
