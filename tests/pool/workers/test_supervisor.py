"""Workers that die, hang or stand stopped, and what becomes of their tasks."""

from __future__ import annotations

import os
import signal
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from rankwise.errors import RankwiseError  # noqa: E402
from rankwise.pool import Model, ModelUnavailable, Pool, Quarantined, TaskHung  # noqa: E402
from rankwise.pool.schedule.scheduler import Scheduler  # noqa: E402
from rankwise.pool.schedule.state import Holding, WorkerState  # noqa: E402
from rankwise.pool.schedule.tasks import Task  # noqa: E402
from rankwise.pool.workers import supervisor  # noqa: E402
from rankwise.pool.workers.runner import is_out_of_memory  # noqa: E402
from rankwise.pool.workers.supervisor import Supervisor  # noqa: E402
from rankwise.weights.loading import load_weights  # noqa: E402
from tests.pool.models import CRASH, EXIT, HANG, KILL, RAISE, TOO_MUCH, Carrying, Odd, linear  # noqa: E402
from tests.pool.schedule.test_scheduler import state  # noqa: E402


class Page:
    """A worker that is seen to run these serials, one after the other, each time somebody looks."""

    def __init__(self, *serials: int) -> None:
        self._serials = list(serials)
        self.recalled = 0

    @property
    def running(self) -> tuple[int, int]:
        return (self._serials.pop(0) if len(self._serials) > 1 else self._serials[0]), 0


@pytest.mark.parametrize(("serials", "again"), [((1,), 2), ((1, 1, 2), 2), ((1, 2), 1), ((3,), 0), ((0,), 0)])
def test_nothing_is_left_with_a_worker_that_will_not_begin_it(serials: tuple[int, ...], again: int) -> None:
    model = state(1)
    made = Scheduler([model], {})
    page: Any = Page(*serials)
    busy, idle = (WorkerState(number, "cpu", is_ready=True, handle=SimpleNamespace(page=page)) for number in (1, 2))
    made.workers = {1: busy, 2: idle}
    busy.holds[1] = Holding(model, busy, 10, is_loading=False)
    tasks = [Task(model, (("=", 1), 1, (), True), 0.0) for _ in range(3)]
    for task in tasks:
        made.begin(busy, model, [task], 0.001, made.next_serial())

    Supervisor(SimpleNamespace(lock=threading.Lock(), scheduler=made), SimpleNamespace())._recall(busy)  # type: ignore[arg-type]

    assert model.queue.waiting == again
    assert page.recalled == (3 if again else 0)
    assert [order.serial for order in busy.inflight.values()] == list(range(1, 4 - again))


def test_the_time_that_the_whole_job_stood_still_is_nobodys() -> None:
    model, now = state(1), time.monotonic()
    model.limit_s = 5.0
    made = Scheduler([model], {})
    worker = WorkerState(1, "cpu", is_ready=True, handle=SimpleNamespace(page=SimpleNamespace(running=(1, int((now - 9) * 1e9)))))
    made.workers, worker.holds[1] = {1: worker}, Holding(model, worker, 10, is_loading=False)
    made.begin(worker, model, [Task(model, (("=", 1), 1, (), True), 0.0)], 0.001, made.next_serial())
    lifecycle = SimpleNamespace(oom=SimpleNamespace(note=lambda now: None), fork_server=None, workers={})
    supervisor = Supervisor(SimpleNamespace(lock=threading.Lock(), scheduler=made), lifecycle)  # type: ignore[arg-type]

    supervisor._looked = now - 0.5
    supervisor.look(now)
    assert (supervisor._hung_s(worker) or 0) > 5
    supervisor._looked = now - 8
    supervisor.look(now)
    assert supervisor._hung_s(worker) is None


HERE = "tests.pool.models"


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    models = {
        "moody": Model(f"{HERE}:moody", limit_s=1.0),
        "haunted": Model(f"{HERE}:haunted", max_batch=8),
        "odd": Model(f"{HERE}:odd_error"),
        "hidden": Model(f"{HERE}:hidden_error"),
        "long": Model(f"{HERE}:wrong_error", args=("long",)),
        "carrying": Model(f"{HERE}:wrong_error", args=("carrying",)),
        "generates": Model(f"{HERE}:generates"),
        "broken": Model(f"{HERE}:broken"),
        "deadly": Model(f"{HERE}:deadly"),
        "not_callable": Model(f"{HERE}:not_callable"),
        "facts": Model(f"{HERE}:facts"),
        "asked": Model(f"{HERE}:asked"),
        "interrupting": Model(f"{HERE}:interrupting", max_batch=4),
        "warm": Model(f"{HERE}:linear", warmup=np.zeros((1, 3), np.float32)),
    }
    with Pool(models, workers=2) as pool:
        yield pool


def wish(number: float) -> torch.Tensor:
    return torch.tensor([number, 1.0])


def code_of(error: BaseException) -> str:
    assert isinstance(error, RankwiseError)
    return error.finding.code


@pytest.mark.parametrize("how", [EXIT, KILL, CRASH])
def test_an_input_that_kills_workers_fails_alone(pool: Pool, how: float) -> None:
    before = [pool.submit("moody", torch.full((2,), float(i))) for i in range(20)]
    killer = pool.submit("moody", wish(how))
    after = [pool.submit("moody", torch.full((2,), float(i))) for i in range(20)]

    error = killer.exception(30)

    assert isinstance(error, Quarantined) and code_of(error) == "RW804"
    assert "why    the last of them" in "".join(traceback.format_exception(error))
    assert "float32[2]" in error.finding.summary
    for futures in (before, after):
        for i, future in enumerate(futures):
            assert future.result(30).tolist() == [2.0 * i, 2.0 * i]


def test_a_killed_worker_is_replaced_within_about_a_second(pool: Pool) -> None:
    pid = pool.submit("facts").result(30)["pid"]
    os.kill(pid, signal.SIGKILL)

    began = time.monotonic()
    pids = {pool.submit("facts").result(30)["pid"] for _ in range(5)}
    assert time.monotonic() - began < 20  # about 0.1 s where the machine is free
    assert pid not in pids


def test_a_task_that_hangs_ends_with_its_stack(pool: Pool) -> None:
    error = pool.submit("moody", wish(HANG)).exception(30)

    assert isinstance(error, TaskHung) and code_of(error) == "RW806"
    assert "models.py" in error.finding.why and "forward" in error.finding.why
    assert all(line in "".join(traceback.format_exception(error)) for line in error.finding.why.splitlines())
    assert pool.submit("moody", wish(4)).result(30).tolist() == [8.0, 2.0]


def test_an_exception_in_the_model_arrives_as_itself_with_the_workers_traceback(pool: Pool) -> None:
    error = pool.submit("moody", wish(RAISE)).exception(30)

    assert type(error) is ValueError and str(error) == "this row is bad"
    assert "models.py" in str(error.__cause__) and "forward" in str(error.__cause__)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(("wish", "says"), [("leave", "SystemExit: 3"), ("cancelled", "CancelledError: within the model")])
def test_what_would_end_the_callers_thread_or_task_arrives_as_an_error(pool: Pool, workers: int, wish: str, says: str) -> None:
    with Pool({"asked": Model(f"{HERE}:asked")}, workers=0) as here:
        error = (pool if workers else here).submit("asked", wish).exception(30)

    assert error is not None and code_of(error) == "RW805" and says in str(error)
    assert "models.py" in str(error.__cause__)


def test_a_row_that_interrupts_ends_neither_its_worker_nor_its_neighbours(pool: Pool) -> None:
    before = pool.stats()["restarts"]
    futures = [pool.submit("interrupting", torch.full((1, 2), value)) for value in (1.0, RAISE, 2.0)]

    assert [future.exception(30) is None for future in futures] == [True, False, True]
    assert "KeyboardInterrupt" in str(futures[1].exception())
    assert pool.stats()["restarts"] == before


def test_an_exception_that_cannot_travel_arrives_as_text(pool: Pool) -> None:
    error = pool.submit("hidden", wish(1)).exception(30)

    assert error is not None and code_of(error) == "RW805"
    assert "nobody can import my class" in str(error)


@pytest.mark.parametrize(
    ("model", "kind", "words"),
    [("odd", Odd, ["1 and 2"]), ("long", ValueError, ["so long long", " … ", "long text"]), ("carrying", Carrying, ["with baggage"])],
)
def test_exceptions_that_pickle_cannot_make_again_arrive_as_their_own_class(pool: Pool, model: str, kind: type, words: list[str]) -> None:
    error = pool.submit(model, wish(1)).exception(30)

    assert type(error) is kind and all(word in str(error) for word in words)
    assert "in the worker" in str(error.__cause__)


def test_an_output_that_cannot_be_sent_names_its_model(pool: Pool) -> None:
    error = pool.submit("generates", wish(1)).exception(30)

    assert error is not None and code_of(error) == "RW805"
    assert "'generates'" in str(error) and "generator" in str(error)


def test_results_that_cannot_be_had_here_fail_also_where_they_came_in_one_batch(pool: Pool) -> None:
    futures = [pool.submit("haunted", torch.full((1, 2), float(i))) for i in range(6)]

    for future in futures:
        assert "what this needs is not here" in str(future.exception(30))
    assert pool.submit("moody", wish(3)).result(30).tolist() == [6.0, 2.0]


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("broken", "there is no such layer"),
        ("deadly", "exit code 4"),
        ("not_callable", "cannot be called"),
        ("warm", "its warm-up failed: RuntimeError: mat1"),
    ],
)
def test_a_build_that_fails_is_reported_with_its_reason(pool: Pool, name: str, word: str) -> None:
    error = pool.submit(name, wish(1)).exception(30)

    assert isinstance(error, ModelUnavailable) and code_of(error) == "RW807"
    assert word in error.finding.summary + error.finding.why
    assert "\nwhy    \n" not in str(error) and ("Traceback" in str(error)) == (name != "deadly")
    assert name != "warm" or "warmup: float32[1, 3]" in error.finding.why
    with pytest.raises(ModelUnavailable):
        pool.submit(name, wish(1)).result(30)
    assert pool.submit("moody", wish(3)).result(30).tolist() == [6.0, 2.0]


def test_a_task_that_asks_for_too_much_memory_gets_torchs_own_error(pool: Pool) -> None:
    error = pool.submit("moody", wish(TOO_MUCH)).exception(30)

    assert type(error) is RuntimeError and is_out_of_memory(error)
    assert pool.submit("moody", wish(3)).result(30).tolist() == [6.0, 2.0]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_finding_of_a_build_is_told_whole(tmp_path: Path, workers: int) -> None:
    torch.save({"weight": torch.zeros(3, 7)}, tmp_path / "other.pt")
    with pytest.raises(RankwiseError) as caught:
        load_weights(linear(), tmp_path / "other.pt")
    told = caught.value.finding

    with Pool({"linear": Model(f"{HERE}:linear", weights=str(tmp_path / "other.pt"))}, workers=workers) as pool:
        error = pool.submit("linear", torch.zeros(1, 10)).exception(60)

    assert isinstance(error, ModelUnavailable) and code_of(error) == "RW807"
    assert f"{told.code} {told.summary}" in error.finding.summary
    assert told.why in error.finding.why and "Traceback" not in error.finding.why
    assert error.finding.next == told.next and f"rankwise explain {told.code}" in told.next
    assert told.code in str(error) and all(step in str(error) for step in told.next)
    assert isinstance(error.__cause__, RankwiseError) and error.__cause__.finding == told


def test_an_exception_that_cannot_be_put_into_words_ends_no_worker(pool: Pool) -> None:
    restarts = pool.stats()["restarts"]
    errors = [pool.submit("asked", "unspeakable").exception(60) for _ in range(2)]

    assert [code_of(error) for error in errors] == ["RW805"] * 2 and all("Unspeakable" in str(error) for error in errors)
    assert pool.stats()["restarts"] == restarts


def test_a_model_is_built_elsewhere_where_another_one_has_left_no_files(tmp_path: Path) -> None:
    reads = Model(f"{HERE}:tight", args=(str(tmp_path / "a file"), 0))
    with Pool({"asked": Model(f"{HERE}:asked"), "reads": reads}, workers=1) as pool:
        pool.submit("asked", "no more files").result(60)

        assert pool.submit("reads", torch.ones(1)).result(60).item() == 2.0
        assert pool.stats()["restarts"] == 1


def test_a_worker_that_hangs_outside_of_all_tasks_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "STUCK_AFTER_S", 0.2)
    with Pool({"clinging": Model(f"{HERE}:clinging"), "asked": Model(f"{HERE}:plain_sum")}, workers=1) as pool:
        assert pool.submit("clinging", torch.ones(1)).result(60).item() == 2.0
        pool.unload("clinging")

        assert pool.submit("asked", torch.ones(2)).result(60) is not None
        assert pool.stats()["restarts"] == 1


def test_an_input_that_closes_the_workers_socket_is_to_blame(pool: Pool) -> None:
    restarts = pool.stats()["restarts"]
    error = pool.submit("asked", "close files", priority=1).exception(60)

    assert isinstance(error, Quarantined) and pool.stats()["restarts"] == restarts + 2


@pytest.mark.live
def test_a_build_for_which_memory_is_short_is_tried_again_elsewhere_and_not_for_ever(tmp_path: Path) -> None:
    models = {
        "passing": Model(f"{HERE}:tight", args=(str(tmp_path / "passing"), 1)),
        "lasting": Model(f"{HERE}:tight", args=(str(tmp_path / "lasting"), 99)),
    }
    with Pool(models, workers=1) as pool:
        assert pool.submit("passing", torch.ones(1)).result(60).item() == 2.0
        with pytest.raises(ModelUnavailable, match=r"could not be built \(3 times\): RuntimeError.*not enough memory"):
            pool.submit("lasting", torch.ones(1)).result(60)
        assert (tmp_path / "lasting").read_text() == "xxx"
        assert pool.submit("passing", torch.ones(1)).result(60).item() == 2.0
