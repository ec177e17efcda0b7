"""The first answer under an id stays."""

from __future__ import annotations

import os
import time
from pathlib import Path

from rankwise.broker.stores import FolderStore


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
