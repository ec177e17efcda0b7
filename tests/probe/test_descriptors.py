"""Descriptors that are kept open: high, closed on exec, and never somebody else's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankwise.probe import descriptors


@pytest.fixture(autouse=True)
def _none_kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    kept: dict[str, tuple[int, str, tuple[int, int]]] = {}
    monkeypatch.setattr(descriptors, "_open", kept)
    yield
    for fd, _, identity in kept.values():
        if descriptors._identity(fd) == identity:
            os.close(fd)


def test_a_file_is_kept_open_under_a_high_number_and_closed_on_exec(tmp_path: Path) -> None:
    fd = descriptors.keep_open("a", str(tmp_path / "a"))

    assert fd >= 64 and not os.get_inheritable(fd) and descriptors.find("a", str(tmp_path / "a")) == fd
    assert descriptors.keep_open("a", str(tmp_path / "a")) == fd
    os.write(fd, b"x")
    assert (tmp_path / "a").read_text() == "x" and (tmp_path / "a").stat().st_mode & 0o777 == 0o600


def test_another_path_is_not_what_was_kept(tmp_path: Path) -> None:
    descriptors.keep_open("a", str(tmp_path / "a"))

    assert descriptors.find("a", str(tmp_path / "b")) == -1 and descriptors.find("b", str(tmp_path / "a")) == -1


def test_a_descriptor_that_the_script_closed_and_used_again_is_left_alone(tmp_path: Path) -> None:
    path = str(tmp_path / "a")
    fd = descriptors.keep_open("a", path)
    os.close(fd)
    assert descriptors.find("a", path) == -1
    theirs = os.open(tmp_path / "theirs", os.O_WRONLY | os.O_CREAT)
    os.dup2(theirs, fd)

    assert descriptors.find("a", path) == -1
    assert descriptors.keep_open("a", path) != fd
    os.close(fd)
    os.close(theirs)


def test_a_forked_childs_descriptor_keeps_its_number_and_becomes_its_own(tmp_path: Path) -> None:
    fd = descriptors.keep_open("a", str(tmp_path / "a"))

    descriptors.reopen_in_child("a", str(tmp_path / "child"))
    os.write(fd, b"x")

    assert descriptors.find("a", str(tmp_path / "child")) == fd
    assert (tmp_path / "child").read_text() == "x" and (tmp_path / "a").read_text() == ""


def test_what_was_not_open_is_not_opened_in_a_child(tmp_path: Path) -> None:
    descriptors.reopen_in_child("a", str(tmp_path / "child"))

    assert not (tmp_path / "child").exists()
