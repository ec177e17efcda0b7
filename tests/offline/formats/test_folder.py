"""Folders: a file is a row, in and out."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rankwise.errors import UnreadableInput
from rankwise.offline.output import write_output
from rankwise.offline.parts import Results
from rankwise.offline.row_batches import Selection
from rankwise.offline.source import open_source
from rankwise.offline.workspace import PredictError
from tests.offline.results import TENSORS


def test_a_folder_is_another_when_a_file_in_it_changed(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"one")
    (tmp_path / "b").symlink_to(tmp_path / "nowhere")
    before = open_source(tmp_path, Selection()).identity

    assert open_source(tmp_path, Selection()).identity == before
    os.utime(tmp_path / "a", ns=(1, 1))
    touched = open_source(tmp_path, Selection()).identity
    (tmp_path / "a").write_bytes(b"other")
    os.utime(tmp_path / "a", ns=(1, 1))

    assert len({str(one) for one in (before, touched, open_source(tmp_path, Selection()).identity)}) == 3


def test_a_file_name_that_is_no_text_is_one_failed_row(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/M\xfcller")).write_bytes(b"")
    (tmp_path / "a").write_bytes(b"")

    (batch,) = open_source(tmp_path, Selection()).batches(4)

    assert list(batch.broken.values()) == ["its name is not UTF-8"] and batch.length == 2


def test_links_to_folders_are_followed_but_not_in_circles(tmp_path: Path) -> None:
    for name in ("in/own", "elsewhere"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "a").write_bytes(b"")
    (tmp_path / "in" / "linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "in" / "own" / "up").symlink_to("..")
    (tmp_path / "elsewhere" / "back").symlink_to(tmp_path / "in")
    (tmp_path / "in" / "itself").symlink_to("itself")

    (batch,) = open_source(tmp_path / "in", Selection()).batches(9)

    assert batch.kept["file"] == ["itself", "linked/a", "own/a"] and list(batch.broken) == [0]


def test_a_folder_that_cannot_be_listed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "locked").mkdir()
    (tmp_path / "a").write_bytes(b"")
    listed = os.scandir

    def scandir(folder: str) -> Any:
        if Path(folder).name == "locked":
            raise PermissionError(13, "Permission denied", folder)
        return listed(folder)

    monkeypatch.setattr(os, "scandir", scandir)

    with pytest.raises(UnreadableInput, match="Permission denied"):
        open_source(tmp_path, Selection())


def test_kept_tensors_are_arrays_of_a_folder(tmp_path: Path) -> None:
    parts = [Results([0, 1], {"output": np.zeros(2), "image": TENSORS.take(pa.array([3, None]))}, [], 0, 2)]

    write_output(tmp_path / "out", lambda: iter(parts), 2)

    assert sorted(path.name for path in (tmp_path / "out").glob("*image*")) == ["00000000.image.npy"]
    assert np.load(tmp_path / "out" / "00000000.image.npy").tolist() == [[12.0, 13.0], [14.0, 15.0]]


def test_a_kept_column_does_not_name_files(tmp_path: Path) -> None:
    parts = [Results([0, 1], {"file": ["../../escaped", "/escaped"], "output": np.zeros(2)}, [], 0, 2)]

    (tmp_path / "in").mkdir()
    write_output(tmp_path / "in" / ".." / "out", lambda: iter(parts), 2)

    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["00000000.file.json", "00000000.output.npy", "00000001.file.json", "00000001.output.npy"]


@pytest.mark.parametrize("files", [["../escaped"], ["/escaped"], ["same", "same"], ["a", "a.npy/b"]])
def test_a_file_outside_the_folder_or_twice_is_refused(tmp_path: Path, files: list[str]) -> None:
    parts = [Results(range(len(files)), {"file": files, "output": np.zeros(len(files))}, [], 0, len(files), file_column="file")]

    with pytest.raises(PredictError) as caught:
        write_output(tmp_path / "out", lambda: iter(parts), len(files))

    assert caught.value.finding.code == "RW834"
    assert not list(tmp_path.iterdir())


def test_the_mark_of_a_complete_folder_is_no_row(tmp_path: Path) -> None:
    for name in ("_SUCCESS", "_a.jpg"):
        (tmp_path / name).touch()

    assert open_source(tmp_path, Selection()).total == 1
