"""The first answer under an id stays, and until there is one, one worker that lives has it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rankwise.broker.stores import FolderStore, RedisStore, Store
from tests.broker.servers import Redis, running

Open = Callable[[], Store]


@pytest.fixture(params=["folder", pytest.param("redis", marks=pytest.mark.live)])
def open_one(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    """Each is that of another worker."""
    if request.param == "folder":
        yield lambda: FolderStore(tmp_path, "q", 60)
    else:
        with running(Redis) as server:
            yield lambda: RedisStore(server.url, "q", 60)


def test_one_worker_has_a_task(open_one: Open) -> None:
    one, other = open_one(), open_one()
    assert one.claim("a") is True and one.claim("a") is True
    assert other.claim("a") is False and other.claim("b") is True
    other.unclaim("a")  # is not its own
    assert other.claim("a") is False
    one.unclaim("a")
    assert other.claim("a") is True


def test_the_answer_ends_every_claim(open_one: Open) -> None:
    one, other = open_one(), open_one()
    assert one.claim("a") is True
    assert one.put("a", b"first") == b"first"
    assert other.claim("a") == b"first" == one.claim("a")


def test_what_a_worker_had_is_free_when_it_leaves(open_one: Open) -> None:
    one, other, third = open_one(), open_one(), open_one()
    assert one.claim("a") is True
    one.leave()
    assert other.claim("a") is True and third.claim("a") is False
    other.leave()
    assert third.claim("a") is True


def test_what_a_worker_had_is_free_when_it_is_not_heard_of(open_one: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankwise.broker.stores.CLAIM_S", 2)
    silent, busy, other = open_one(), open_one(), open_one()
    assert silent.claim("a") is True and busy.claim("b") is True
    end = time.monotonic() + 30
    while other.claim("a") is False:
        assert time.monotonic() < end
        busy.sign()
        time.sleep(0.1)
    assert other.claim("b") is False


def test_the_first_answer_stays(tmp_path: Path) -> None:
    store, other = FolderStore(tmp_path, "q", 60), FolderStore(tmp_path, "q", 60)
    assert store.get("../a") is None
    assert store.put("../a", b"first") == b"first"
    assert other.put("../a", b"second") == b"first" == other.get("../a")
    assert FolderStore(tmp_path, "another", 60).get("../a") is None


def test_tries_are_counted_over_workers(tmp_path: Path) -> None:
    assert FolderStore(tmp_path, "q", 60).count_try("a") == 1
    assert FolderStore(tmp_path, "q", 60).count_try("a") == 2


def test_old_answers_go(tmp_path: Path) -> None:
    store = FolderStore(tmp_path, "q", 60)
    store.put("old", b"x")
    store.put("new", b"x")
    os.utime(store._path("old"), (time.time() - 100, time.time() - 100))
    again = FolderStore(tmp_path, "q", 60)
    assert again.get("old") is None and again.get("new") == b"x"


def test_answers_in_a_folder_that_all_can_read_are_the_users_own(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    FolderStore(tmp_path, "q", 60).put("a", b"answer")

    assert [path.stat().st_mode & 0o077 for path in tmp_path.iterdir()] == [0]
