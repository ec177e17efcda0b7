"""Files that appear whole."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from rankwise.files import what_stops, whole_file, write_whole


@pytest.mark.parametrize("is_synced", [True, False])
def test_a_file_that_fails_leaves_the_old_one_and_nothing_else(tmp_path: Path, is_synced: bool) -> None:
    path = tmp_path / "a.json"
    write_whole(path, "old")
    with pytest.raises(RuntimeError), whole_file(path, is_synced=is_synced) as file:
        file.write(b"half")
        raise RuntimeError

    assert [found.name for found in tmp_path.iterdir()] == ["a.json"]
    assert path.read_text() == "old"


def test_private_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    write_whole(tmp_path / "own", b"x", is_private=True)
    write_whole(tmp_path / "all", b"x")

    assert (tmp_path / "own").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "all").stat().st_mode & 0o400


@pytest.mark.parametrize(
    ("number", "what", "helps"),
    [(errno.ENOSPC, "disk is full", "make room"), (errno.EFBIG, "size of files", "ulimit -f"), (errno.EEXIST, "exists", "ls -ld")],
)
def test_what_helps_is_what_is_in_the_way(number: int, what: str, helps: str) -> None:
    said, way_out = what_stops(OSError(number, "it exists"))

    assert what in said and helps in way_out
