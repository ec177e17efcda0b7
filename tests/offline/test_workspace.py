"""The folder of an unfinished job: what is done is found again, of this very job only."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import pytest

from rankwise.offline.parts import NextPart
from rankwise.offline.workspace import (
    PredictError,
    Workspace,
    folder_of,
    holds_what_was_written,
    is_placed,
    is_same,
    marker_of,
    names_in,
    read_marker,
    write_marker,
)
from tests.offline.results import batches

JOB = {"input": "rows.csv", "batch": 1}


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"


def begun(output: Path, parts: int = 2, job: dict[str, Any] = JOB) -> None:
    """A job that was killed after so many parts."""
    workspace = Workspace(output, job)
    workspace.note(plan=8)
    for number, results in enumerate(itertools.islice(batches(), parts)):
        workspace.add(NextPart(results), position=100 * number)
    workspace.close()


def rows_of(output: Path, **options: Any) -> int:
    workspace = Workspace(output, JOB, **options)
    workspace.close()
    return workspace.done_rows


def test_what_is_done_is_found_again(output: Path) -> None:
    begun(output)

    workspace = Workspace(output, JOB)
    found = [results.rows.tolist() for results in workspace.results()]
    workspace.close()

    wanted = batches()[:2]
    assert (workspace.done_rows, workspace.failed_rows, workspace.position) == (18, 1, 100)
    assert workspace.noted("plan") == 8 and workspace.noted("end") is None
    assert [row for rows in found for row in rows] == [row for results in wanted for row in results.rows.tolist()]


def test_nothing_is_done_in_the_beginning(output: Path) -> None:
    workspace = Workspace(output, JOB)
    workspace.close()

    assert (workspace.done_rows, workspace.failed_rows, workspace.position) == (0, 0, None)
    assert list(workspace.results()) == []


@pytest.mark.parametrize("harm", ["changed", "longer", "shorter", "gone"])
def test_a_part_that_is_not_what_was_written_is_not_used_nor_what_follows(output: Path, harm: str) -> None:
    begun(output, parts=3)
    part = folder_of(output) / "part-00000001"
    content = bytearray(part.read_bytes())
    if harm == "changed":
        content[len(content) // 2] ^= 1
    part.write_bytes({"longer": content + b"x", "shorter": content[:-1]}.get(harm, bytes(content)))
    if harm == "gone":
        part.unlink()

    assert rows_of(output) == 17
    assert sorted(path.name for path in folder_of(output).iterdir()) == ["journal", "part-00000000"]


def test_a_file_that_no_record_knows_is_removed(output: Path) -> None:
    begun(output, parts=1)
    (folder_of(output) / "part-00000007").touch()

    assert rows_of(output) == 17
    assert not (folder_of(output) / "part-00000007").exists()


def test_another_job_is_not_continued_unless_it_begins_anew(output: Path) -> None:
    begun(output)
    other = {**JOB, "batch": 1.0}

    with pytest.raises(PredictError) as caught:
        Workspace(output, other)
    assert caught.value.finding.code == "RW831"
    assert caught.value.finding.why == "batch: then 1, now 1.0"
    workspace = Workspace(output, other, restart=True)
    workspace.close()

    assert workspace.done_rows == 0
    assert not list(folder_of(output).glob("part-*"))


def test_another_job_that_has_done_nothing_yet_is_no_hindrance(output: Path) -> None:
    begun(output, parts=0, job={"input": "others.csv"})

    assert rows_of(output) == 0


def test_the_same_job_begins_anew_where_it_is_told_to(output: Path) -> None:
    begun(output)

    assert rows_of(output, restart=True) == 0


def test_a_job_that_discards_what_is_done_goes_on_with_what_it_knows_now(output: Path) -> None:
    begun(output)
    workspace = Workspace(output, JOB)
    workspace.begin_again(plan=4)
    workspace.close()

    assert (workspace.done_rows, workspace.noted("plan")) == (0, 4)
    assert rows_of(output) == 0


def test_who_keeps_the_files_elsewhere_is_told_of_each(output: Path) -> None:
    sent: list[str] = []
    workspace = Workspace(output, JOB, send=lambda path: sent.append(path.name))
    workspace.add(NextPart(batches()[0]), None)
    workspace.close()

    assert sent == ["journal", "part-00000000", "journal"]


def test_an_output_that_this_job_has_put_there_is_known_for_its_own(output: Path) -> None:
    workspace = Workspace(output, JOB)
    complete = output.with_name("complete")
    complete.write_text("all")
    workspace.begin_placing(complete)
    workspace.close()
    assert not is_placed(output, JOB)

    complete.rename(output)

    assert is_placed(output, JOB)
    assert not is_placed(output, {**JOB, "batch": 2})
    output.write_text("another")
    assert not is_placed(output, JOB)


def test_a_job_that_has_ended_leaves_no_folder(output: Path) -> None:
    workspace = Workspace(output, JOB)
    workspace.close()
    workspace.remove()

    assert not folder_of(output).exists()
    assert not is_placed(output, JOB)


@pytest.mark.parametrize(
    ("one", "other", "wanted"),
    [
        (1, 1, True),
        (1, 1.0, False),
        (1, True, False),
        (0.0, -0.0, False),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
        ([1, 2], (1, 2), True),
    ],
)
def test_the_same_to_the_type_and_the_last_bit(one: Any, other: Any, wanted: bool) -> None:
    assert is_same(one, other) is wanted


def test_a_marker_says_what_the_output_was_made_from(output: Path) -> None:
    output.write_text("all")
    write_marker(output, {"bytes": 3, "names": None})

    assert holds_what_was_written(output, read_marker(output))
    output.write_text("more")
    assert not holds_what_was_written(output, read_marker(output))


@pytest.mark.parametrize("content", [None, "{", "[1]", "\0"])
def test_a_marker_that_says_nothing_is_none(output: Path, content: str | None) -> None:
    if content is not None:
        marker_of(output).write_text(content)

    assert read_marker(output) == {}


def test_a_folder_is_known_by_the_names_in_it(tmp_path: Path, output: Path) -> None:
    folder = tmp_path / "out"
    (folder / "below").mkdir(parents=True)
    before = names_in(folder)
    os.close(os.open(folder / "below" / "x\udcff", os.O_CREAT))

    assert before and names_in(folder) not in (before, None)
    assert names_in(output) is None
    output.touch()
    assert names_in(output) is None


def test_a_folder_that_cannot_be_written_to_is_a_finding(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(PredictError) as caught:
        Workspace(tmp_path / "file" / "out.jsonl", JOB)

    assert caught.value.finding.code == "RW741"
