"""Files that appear whole."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from rankwise.files import is_special, what_stops, whole_file, write_whole


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


def test_a_pipe_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="pipe or a device"):
        write_whole(tmp_path / "pipe", "x")

    assert (tmp_path / "pipe").is_fifo()


def test_devices_are_known_and_files_are_not_taken_for_them(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to("nowhere")

    assert all(map(is_special, map(Path, ("/dev/null", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/2"))))
    assert not any(
        map(
            is_special,
            (
                tmp_path,
                tmp_path / "file",
                tmp_path / "link",
                tmp_path / "new",
                tmp_path / "dangling",
                Path("/dev/shm/x"),
                Path("/proc/x"),
                Path("new"),
            ),
        )
    )


@pytest.mark.parametrize(
    ("number", "what", "helps"),
    [(errno.ENOSPC, "disk is full", "make room"), (errno.EFBIG, "size of files", "ulimit -f"), (errno.EEXIST, "exists", "ls -ld")],
)
def test_what_helps_is_what_is_in_the_way(number: int, what: str, helps: str) -> None:
    said, way_out = what_stops(OSError(number, "it exists"))

    assert what in said and helps in way_out
