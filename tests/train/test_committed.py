"""Folders of checkpoints: whole or not there, the newest first, and a good one is never replaced."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from rankwise.findings import Finding
from rankwise.train import committed
from rankwise.train.committed import MANIFEST, STATE, Saved
from tests.train.farm import Farm

JOBS = "tests.train.jobs_checkpoints"


def save(folder: Path, step: int, data: bytes = b"weights" * 100) -> Saved:
    partial = committed.begin(folder, step)
    assert isinstance(partial, Path)
    line = committed.write_file(partial / STATE, lambda file: file.write(data))
    return committed.commit(partial, step, {STATE: line}, {})


def test_only_folders_with_a_name_and_a_manifest_are_checkpoints(tmp_path: Path) -> None:
    for step in (5, 120, 123_456_789):
        save(tmp_path / "a", step)
    for name in ("step-7", "step-00000200", "step-00000300.damaged", ".step-00000400.1f3c0a92.partial"):
        (tmp_path / "a" / name).mkdir()
    for name in ("step-7", "step-00000300.damaged"):
        (tmp_path / "a" / name / MANIFEST).write_text("{}")

    assert [saved.step for saved in committed.all_saved(tmp_path / "a")] == [123_456_789, 120, 5]
    assert committed.all_saved(tmp_path / "nothing here") == []


def test_the_newest_has_a_name_that_holds_where_the_folder_is_moved_to(tmp_path: Path) -> None:
    save(tmp_path / "a", 1, b"old")
    save(tmp_path / "a", 2, b"new")
    (tmp_path / "a").rename(tmp_path / "b")

    assert (tmp_path / "b" / "last.pt").read_bytes() == b"new"


def damage(saved: Saved, how: str) -> None:
    data, manifest = saved.state.read_bytes(), json.loads((saved.path / MANIFEST).read_text())
    if how == "flipped":
        saved.state.write_bytes(b"x" + data[1:])
    elif how == "cut":
        saved.state.write_bytes(data[:-1])
    elif how == "gone":
        saved.state.unlink()
    else:
        step = {"of another step": {"step": 9}, "without files": {"files": {}}, "files in a list": {"files": [STATE]}}
        text = json.dumps({**manifest, **step[how]} if how in step else [])
        (saved.path / MANIFEST).write_text("{" if how == "no JSON" else text)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("flipped", "state.pt has other content than was written"),
        ("cut", "state.pt has 699 bytes, 700 were written"),
        ("gone", "No such file"),
        ("of another step", "it is of step 9"),
        ("without files", "does not list state.pt"),
        ("files in a list", "cannot be read"),
        ("no dictionary", "cannot be read"),
        ("no JSON", "cannot be read"),
    ],
)
def test_damage_is_found_and_makes_room_for_another_of_that_step(tmp_path: Path, how: str, said: str) -> None:
    saved = save(tmp_path, 4)
    assert committed.find_damage(saved) is None
    damage(saved, how)

    assert said in str(committed.find_damage(saved))
    again = save(tmp_path, 4, b"good again")
    assert again == saved and committed.find_damage(again) is None and again.state.read_bytes() == b"good again"


def test_a_good_one_is_not_written_again_and_nothing_is_written_behind_it(tmp_path: Path) -> None:
    saved = save(tmp_path, 4)

    assert committed.begin(tmp_path, 4) is None
    finding = committed.begin(tmp_path, 3)

    assert isinstance(finding, Finding) and finding.code == "RW707" and "one of step 4" in finding.summary
    assert committed.all_saved(tmp_path) == [saved] and not list(tmp_path.glob(".step-*"))


def test_what_a_crash_left_behind_goes_when_the_next_one_begins(tmp_path: Path) -> None:
    left = committed.begin(tmp_path, 4)

    begun = committed.begin(tmp_path, 4)

    assert isinstance(left, Path) and isinstance(begun, Path) and left != begun
    assert list(tmp_path.iterdir()) == [begun]


def test_only_as_many_as_asked_for_stay_and_one_set_aside_is_none_of_them(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        save(tmp_path, step)
    committed.set_aside(Saved(4, committed.path_of(tmp_path, 4)))

    committed.prune(tmp_path, 2)

    assert sorted(path.name for path in tmp_path.glob("*step-*")) == ["step-00000002", "step-00000003", "step-00000004.damaged"]


class Unwritable:
    """What torch does when the disk is full: an error without a number, raised while it handles the one that has it."""

    def __init__(self, reason: BaseException | None) -> None:
        self.reason = reason

    def __call__(self, file: Any) -> None:
        try:
            if self.reason is not None:
                raise self.reason
        finally:
            raise RuntimeError("unexpected pos 64 vs 0")


def test_a_write_that_failed_is_told_by_what_the_disk_said(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space left"):
        committed.write_file(tmp_path / STATE, Unwritable(OSError(28, "No space left on device")))
    with pytest.raises(RuntimeError, match="unexpected pos"):
        committed.write_file(tmp_path / STATE, Unwritable(None))


def test_a_checkpoint_that_cannot_be_finished_leaves_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved, partial = save(tmp_path, 1), committed.begin(tmp_path, 2)
    assert isinstance(partial, Path)
    monkeypatch.setattr(torch, "save", lambda state, file: Unwritable(OSError(28, "No space left on device"))(file))

    finding = committed.finish(partial, 2, {}, keep=1)

    assert finding is not None and finding.code == "RW707"
    assert "the last good one is of step 1" in finding.summary
    assert committed.all_saved(tmp_path) == [saved] and not partial.exists()


@pytest.mark.live
def test_death_at_any_call_leaves_the_checkpoint_before_or_the_new_one(farm: Farm, tmp_path: Path) -> None:
    assert farm.alone("commit_and_die", jobs=JOBS, folder=tmp_path, step=1, number=10_000)
    last, number = 1, 0
    while True:
        outcome = farm.ranks("commit_and_die", 0, jobs=JOBS, folder=tmp_path, step=last + 1, number=number)[0]
        newest, damage = farm.alone("newest_committed", jobs=JOBS, folder=tmp_path)
        assert newest in (last, last + 1), f"died at call {number}"
        assert not any(damage)
        last, number = newest, number + 1
        if not outcome.status:
            break
        assert outcome.status == -9
    assert number > 15


def test_a_writer_that_was_thought_dead_does_no_harm(farm: Farm, tmp_path: Path) -> None:
    assert farm.alone("two_writers", jobs=JOBS, folder=tmp_path) == ("FileNotFoundError", [4])
