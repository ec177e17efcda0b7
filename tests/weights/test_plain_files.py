"""Plain files only, their own bytes only, and nothing beyond their end."""

from __future__ import annotations

import io
import os
import socket
from pathlib import Path

import pytest

from rankwise.errors import UnreadableInput
from rankwise.weights.plain_files import FileBytes, FilePart, beside, check_path, open_bytes, read_small
from rankwise.weights.tensor_records import CheckpointError, Damaged, Replaced

CONTENT = bytes(range(256)) * 100  # several blocks


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "last.pt").write_bytes(CONTENT)
    return tmp_path / "last.pt"


def test_slices_are_those_of_bytes(path: Path) -> None:
    data = open_bytes(path)

    assert len(data) == len(CONTENT)
    for start, stop in [(0, 4), (8190, 8200), (4, 8), (3, 20_000), (25_599, 25_600), (25_000, 30_000), (7, 7), (-4, None)]:
        assert data[start:stop] == CONTENT[start:stop]


def test_a_buffer_is_filled(path: Path) -> None:
    buffer = bytearray(1000)

    open_bytes(path).read_into(buffer, 24_600)

    assert buffer == CONTENT[24_600:]


@pytest.mark.parametrize("size", [4, 20_000])
def test_a_file_that_became_shorter_is_told(path: Path, size: int) -> None:
    data = FileBytes(path)
    os.truncate(path, 100)

    with pytest.raises((Damaged, Replaced), match=r"become shorter|was replaced"):
        data[1000 : 1000 + size]


@pytest.mark.parametrize("size", [4, 20_000])
def test_a_file_that_was_written_anew_in_its_place_is_told(path: Path, size: int) -> None:
    data = FileBytes(path)
    path.write_bytes(CONTENT[::-1])
    os.utime(path, ns=(0, 0))

    with pytest.raises(Replaced):
        data[:size]


def test_a_file_that_lost_its_name_still_has_its_bytes(path: Path) -> None:
    data = FileBytes(path)
    path.unlink()

    assert data[:4] == CONTENT[:4]


def test_paths_that_are_no_files_are_told(tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    os.symlink("loop", "loop")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")

        for name, said in [
            ("", "the path is empty"),
            ("gone", "gone cannot be read"),
            ("loop", "loop cannot be read"),
            ("a\0b", "cannot be read"),
            ("pipe", "neither a file nor a folder"),
            ("socket", "neither a file nor a folder"),
            ("/dev/zero", "neither a file nor a folder"),
        ]:
            with pytest.raises(UnreadableInput, match=said):
                check_path(name)
    assert check_path(path) == path and check_path(str(tmp_path)) == tmp_path


def test_a_small_file_is_read_whole_and_a_large_one_not(path: Path) -> None:
    assert read_small(path, len(CONTENT)) == CONTENT
    with pytest.raises(Damaged, match="25,600 bytes, where at most 25,599 are sensible"):
        read_small(path, len(CONTENT) - 1)


@pytest.mark.parametrize("name", ["", ".", "..", "../last.pt", "a/b", "/etc/passwd", "a\\b", "a\0", 3, None])
def test_an_index_does_not_choose_what_is_opened(tmp_path: Path, name: object) -> None:
    with pytest.raises(CheckpointError, match="which is not beside it"):
        beside(tmp_path, name, "index.json")


def test_what_an_index_names_has_to_be_there_and_of_its_kind(tmp_path: Path, path: Path) -> None:
    (tmp_path / "folder").mkdir()

    assert beside(tmp_path, "last.pt", "index.json") == path
    assert beside(tmp_path, "folder", "index.json", is_folder=True) == tmp_path / "folder"
    for name, is_folder in [("gone.pt", False), ("folder", False), ("last.pt", True)]:
        with pytest.raises(CheckpointError, match=f"names {name}, which is not there"):
            beside(tmp_path, name, "index.json", is_folder)


def test_a_part_of_a_file_reads_like_a_file_of_its_own() -> None:
    part = FilePart(CONTENT, 10, 20)

    assert part.read() == CONTENT[10:30]
    assert part.read() == b""
    assert part.seek(-5, io.SEEK_END) == 15 and part.read(100) == CONTENT[25:30]
    assert part.seek(5) == 5 and part.seek(2, io.SEEK_CUR) == 7 and part.read(3) == CONTENT[17:20]
    assert part.seekable()
    with pytest.raises(OSError, match="before the start"):
        part.seek(-1)


@pytest.mark.parametrize(("start", "length"), [(-1, 5), (0, -1), (0, len(CONTENT) + 1), (len(CONTENT), 1)])
def test_a_part_lies_within_its_file(start: int, length: int) -> None:
    with pytest.raises(Damaged, match="are declared"):
        FilePart(CONTENT, start, length)


def test_a_part_may_end_where_its_file_does() -> None:
    assert FilePart(CONTENT, len(CONTENT) - 1, 1).read() == CONTENT[-1:]
