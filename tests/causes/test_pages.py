"""The pages under docs/causes: written from the doc blocks, with an index, and nothing left over."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rankwise.causes import Cause, all_causes, load_cause
from rankwise.causes.pages import FAMILIES, index_page, page_of, write_pages


def test_writes_one_page_per_cause_and_an_index(tmp_path: Path) -> None:
    written = write_pages(tmp_path / "causes")

    names = {path.name for path in (tmp_path / "causes").iterdir()}
    assert names == {path.name for path in written} == {"index.md", *(f"{cause.code}.md" for cause in all_causes())}
    assert (tmp_path / "causes" / "RW201.md").read_text() == page_of(load_cause("RW201"))


def test_pages_of_causes_that_are_gone_go_too_and_other_files_stay(tmp_path: Path) -> None:
    (tmp_path / "RW999.md").write_text("an old page")
    (tmp_path / "figure.svg").write_text("<svg/>")

    write_pages(tmp_path)

    assert not (tmp_path / "RW999.md").exists()
    assert (tmp_path / "figure.svg").exists()


def test_writing_twice_changes_nothing(tmp_path: Path) -> None:
    write_pages(tmp_path)
    before = {path.name: path.read_text() for path in tmp_path.iterdir()}

    write_pages(tmp_path)

    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("cause", all_causes(), ids=lambda cause: cause.code)
def test_a_page_names_its_cause_once_on_top_and_ends_with_the_steps(cause: Cause) -> None:
    page = page_of(cause)

    assert page.splitlines()[1] == f"# {cause.code} · {cause.title}"
    assert sum(line.startswith("# ") for line in outside_code(page)) == 1
    assert page.endswith("\n".join(f"- {step}" for step in cause.next) + "\n")
    assert f"`{cause.name}` · {cause.severity}" in page


def test_the_index_lists_every_cause_in_its_family() -> None:
    index = index_page(all_causes())

    for cause in all_causes():
        family = index.split(f"## {FAMILIES[cause.code[2]]}\n")[1].split("\n## ")[0]
        assert f"[{cause.code}]({cause.code}.md)" in family
        assert cause.title in family


def test_every_family_has_a_heading_and_none_is_empty() -> None:
    assert {cause.code[2] for cause in all_causes()} == set(FAMILIES)


def test_the_folder_has_to_be_given() -> None:
    ran = subprocess.run([sys.executable, "-m", "rankwise.causes.pages"], capture_output=True, text=True, timeout=60)

    assert ran.returncode != 0
    assert "usage" in ran.stderr


def outside_code(page: str) -> list[str]:
    """The lines of a page that are no code: a `#` there is a heading."""
    parts = page.split("```")
    return [line for part in parts[::2] for line in part.splitlines()]
