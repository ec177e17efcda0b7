"""Models that come, go and are built anew while others run: no task is lost, and a new one that cannot be had costs nothing."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from rankwise.errors import RankwiseError, UsageError  # noqa: E402
from rankwise.pool import Model, Pool, PoolClosed  # noqa: E402
from tests.pool.models import EXIT  # noqa: E402

HERE = "tests.pool.models"
LONG_S = 60
X = np.ones((1, 4), np.float32)


def save(path: Path, value: float) -> None:
    """Weights of a linear layer that answers `value` to whatever it is asked."""
    torch.save({"weight": torch.zeros(2, 4), "bias": torch.full((2,), value)}, path)


def constant(path: Path, **more: Any) -> Model:
    return Model("torch.nn:Linear", weights=path, args=(4, 2), **more)


@pytest.fixture(params=[2, 0], ids=["workers", "in this process"])
def pool(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pool]:
    save(tmp_path / "w.pt", 1.0)
    with Pool({"first": constant(tmp_path / "w.pt"), "moody": Model(f"{HERE}:moody")}, workers=request.param) as pool:
        yield pool


def answer(pool: Pool, model: str = "first") -> float:
    return float(pool.submit(model, X).result(LONG_S)[0, 0])


def test_a_model_comes_and_goes(pool: Pool, tmp_path: Path) -> None:
    save(tmp_path / "second.pt", 2.0)
    pool.add("second", constant(tmp_path / "second.pt"))
    assert answer(pool, "second") == 2.0 and pool.models == ("first", "moody", "second")
    with pytest.raises(UsageError):
        pool.add("second", constant(tmp_path / "second.pt"))

    last = pool.submit("second", X)
    pool.remove("second")

    assert last.result(LONG_S)[0, 0] == 2.0 and pool.models == ("first", "moody")
    with pytest.raises(UsageError):
        pool.submit("second", X)
    end = time.monotonic() + LONG_S
    while any("second" in worker["holds"] for worker in pool.stats()["workers"]):
        assert time.monotonic() < end
        time.sleep(0.01)


def test_replicas_that_read_different_weights_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save(tmp_path / "w.pt", 1.0)
    with Pool({"first": constant(tmp_path / "w.pt", replicas=2)}, workers=2) as pool:
        pool.load("first").result(LONG_S)
        save(tmp_path / "w.pt", 2.0)
        os.kill(pool.stats()["workers"][0]["pid"], signal.SIGKILL)
        end = time.monotonic() + LONG_S
        while "has other weights in worker 3" not in caplog.text:
            assert time.monotonic() < end
            list(pool.map("first", [X] * 300))  # more than one worker does at once: the missing replica is made

        caplog.clear()
        pool.reload("first").result(LONG_S)
        assert answer(pool) == 2.0 and "other weights" not in caplog.text


def test_replicas_whose_build_gives_each_other_weights_are_told(caplog: pytest.LogCaptureFixture) -> None:
    models = {name: Model(f"{HERE}:{name}", replicas=2) for name in ("linear", "drawn_by_numpy")}
    with Pool(models, workers=2) as pool:
        for name in models:
            pool.load(name).result(LONG_S)
        end = time.monotonic() + LONG_S
        while "has other weights" not in caplog.text:
            assert time.monotonic() < end
            for name in models:
                list(pool.map(name, [np.ones((1, 10), np.float32)] * 300))  # more than one worker does at once
    assert "model 'drawn_by_numpy' has other weights in worker" in caplog.text and "'linear'" not in caplog.text


def test_a_reload_takes_what_is_new_and_keeps_the_numbers(pool: Pool, tmp_path: Path) -> None:
    assert answer(pool) == 1.0
    save(tmp_path / "w.pt", 3.0)
    assert answer(pool) == 1.0  # nobody said anything yet

    pool.reload("first").result(LONG_S)

    assert answer(pool) == 3.0
    numbers = pool.stats()["models"]["first"]
    assert numbers["completed"] == 3 and numbers["loads"] == 2 and sum(count for count, _ in numbers["batches"].values()) == 3


def test_where_the_new_one_cannot_be_built_the_old_one_stays(pool: Pool, tmp_path: Path) -> None:
    assert answer(pool) == 1.0
    (tmp_path / "w.pt").write_bytes(b"no weights")

    with pytest.raises(RankwiseError) as caught:
        pool.reload("first").result(LONG_S)

    assert caught.value.finding.code == "RW807" and answer(pool) == 1.0


def test_a_reload_may_say_another_model(pool: Pool, tmp_path: Path) -> None:
    save(tmp_path / "other.pt", 9.0)
    assert answer(pool) == 1.0

    pool.reload("first", constant(tmp_path / "other.pt", max_batch=4)).result(LONG_S)

    assert answer(pool) == 9.0 and pool.model("first").max_batch == 4


@pytest.mark.live
def test_under_load_no_task_is_lost_and_none_gets_an_answer_from_before_after(tmp_path: Path) -> None:
    """Six threads ask while the weights change 5 times and a worker is killed; answers never go back to older weights."""
    save(tmp_path / "w.pt", 0.0)
    models = {"first": constant(tmp_path / "w.pt", max_batch=8, replicas=1), "moody": Model(f"{HERE}:moody")}
    wrong: list[Any] = []
    stop = threading.Event()

    def ask(pool: Pool) -> None:
        seen = 0.0
        while not stop.is_set():
            try:
                found = answer(pool)
            except BaseException as error:
                wrong.append(error)
                return
            if found < seen:
                wrong.append((seen, found))
            seen = found

    with Pool(models, workers=2) as pool:
        pool.load("first").result(LONG_S)
        threads = [threading.Thread(target=ask, args=(pool,)) for _ in range(6)]
        for thread in threads:
            thread.start()
        try:
            for value in range(1, 6):
                save(tmp_path / "new.pt", float(value))
                (tmp_path / "new.pt").replace(tmp_path / "w.pt")
                if value == 3:
                    pool.submit("moody", np.full(1, EXIT, np.float32)).exception(LONG_S)
                pool.reload("first").result(LONG_S)
                assert answer(pool) == value
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert not wrong
        assert pool.stats()["models"]["first"]["replicas"] >= 1


def test_a_stream_goes_on_over_a_reload(pool: Pool, tmp_path: Path) -> None:
    found = []
    for number, y in enumerate(pool.map("first", (X for _ in range(400)), window=8)):
        found.append(float(y[0, 0]))
        if number == 50:
            save(tmp_path / "w.pt", 4.0)
            pool.reload("first").result(LONG_S)
    assert set(found) == {1.0, 4.0} and found == sorted(found) and len(found) == 400


def test_what_a_worker_says_of_a_model_that_is_gone_harms_nobody(tmp_path: Path) -> None:
    """It may have begun a task at the very moment this was taken back to run elsewhere, and the model removed."""
    save(tmp_path / "w.pt", 1.0)
    with Pool({"first": constant(tmp_path / "w.pt")}, workers=1) as pool:
        answer(pool, "first")
        backend: Any = pool._backend
        backend.take_message(next(iter(backend.lifecycle.workers.values())), ("unbatchable", 999, "its rows depend on each other"))

        assert answer(pool, "first") == 1.0


def test_what_was_asked_for_last_stays_however_long_builds_take(tmp_path: Path) -> None:
    def model(value: float) -> Model:
        return Model(f"{HERE}:constant_once", args=(value, str(tmp_path / f"{value}")))

    (tmp_path / "1.0").touch()
    with Pool({"first": model(1.0), "gone": model(1.0)}, workers=4) as pool:
        slow, removed, quick = pool.reload("first", model(2.0)), pool.reload("gone", model(2.0)), pool.reload("first", model(3.0))
        pool.remove("gone")
        (tmp_path / "3.0").touch()
        quick.result(LONG_S)
        (tmp_path / "2.0").touch()

        for future in slow, removed:
            error = future.exception(LONG_S)
            assert isinstance(error, PoolClosed) and "later call" in error.finding.summary
        assert answer(pool) == 3.0 and pool.model("first").args[0] == 3.0
        (tmp_path / "4.0").touch()
        pool.add("gone", model(4.0))
        assert answer(pool, "gone") == 4.0


def test_a_load_is_done_where_a_reload_was_quicker(tmp_path: Path) -> None:
    slow = Model(f"{HERE}:constant_once", args=(1.0, str(tmp_path / "1")))
    with Pool({"first": slow}, workers=2) as pool:
        loaded = pool.load("first")
        pool.reload("first", Model(f"{HERE}:sleeper")).result(LONG_S)
        loaded.result(LONG_S)
        (tmp_path / "1").touch()


def test_what_builds_carry_along_takes_no_room_once_they_are_gone() -> None:
    def policy(value: int) -> Model:
        return Model(f"{HERE}:weighty", args=(1, bytes([value]) * 1_000_000))

    with Pool({"policy": policy(0)}, workers=1, lane_bytes="8MiB") as pool:
        for value in range(1, 12):
            pool.reload("policy", policy(value)).result(LONG_S)
        assert pool.submit("policy", np.ones(2, np.float32)).result(LONG_S).tolist() == [1.0, 1.0]
        end = time.monotonic() + LONG_S
        while pool.stats()["lanes"]["inputs_used_bytes"] > 2_000_000:
            assert time.monotonic() < end
            time.sleep(0.01)


def test_a_callback_may_add_a_model_where_another_is_removed(tmp_path: Path) -> None:
    save(tmp_path / "w.pt", 1.0)
    with Pool({"slow": Model(f"{HERE}:constant_once", args=(1.0, str(tmp_path / "1")))}, workers=1) as pool:
        pool.load("slow").add_done_callback(lambda _: pool.add("other", constant(tmp_path / "w.pt")))
        threading.Thread(target=pool.remove, args=("slow",), daemon=True).start()
        end = time.monotonic() + LONG_S
        while "other" not in pool.models:
            assert time.monotonic() < end
            time.sleep(0.01)
        (tmp_path / "1").touch()
        assert answer(pool, "other") == 1.0
