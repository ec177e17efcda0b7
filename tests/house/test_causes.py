"""Every cause has a whole page, an up-to-date file under docs/causes, and a test that expects it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from rankwise.causes import Cause, all_causes
from rankwise.causes.pages import index_page, page_of
from tests.house.imports import ROOT, SRC

CAUSES = all_causes()
SECTIONS = ["What it is", "Why it happens", "How to fix it", "Before", "After"]
SEVERITY = {
    "0": "error",
    "1": "error",
    "2": "error",
    "3": "warning",
    "4": "error",
    "5": "info",
    "6": "error",
    "7": "error",
    "8": "error",
    "9": "warning",
}
EXCEPTIONS = {
    "RW109": "warning",  # a rank that is slow before init may still arrive
    "RW125": "warning",  # settings may differ on purpose
    "RW811": "warning",  # the answers are right, only slower
    # A job can live with these, only worse.
    # Training that runs but trains wrong: nothing fails, and where only the user can know it is a note.
    **dict.fromkeys(("RW750", "RW751", "RW754", "RW755", "RW760", "RW761", "RW764", "RW765", "RW766"), "warning"),
    **dict.fromkeys(("RW770", "RW771", "RW773", "RW774", "RW775", "RW776", "RW782", "RW783"), "warning"),
    **dict.fromkeys(("RW752", "RW753", "RW756", "RW762", "RW763", "RW780", "RW781", "RW784", "RW785"), "info"),
    **dict.fromkeys(("RW601", "RW610", "RW612", "RW617", "RW623", "RW633", "RW634"), "warning"),
}
NEEDS_NO_STORY = {"RW001", "RW002"}  # said by the command line, tested with it


def each_cause(argname: str = "cause") -> pytest.MarkDecorator:
    return pytest.mark.parametrize(argname, CAUSES, ids=lambda cause: cause.code)


@each_cause()
def test_has_a_title_and_all_sections_in_order(cause: Cause) -> None:
    headings = re.findall(r"^## (.+)$", cause.page, re.MULTILINE)

    assert cause.page.splitlines()[1] == "", "an empty line follows the title"
    assert len(cause.title) <= 100 and not cause.title.endswith(".")
    assert [heading for heading in headings if heading != "When to ignore it"] == SECTIONS
    assert headings[-1] in ("After", "When to ignore it")


@each_cause()
def test_severity_and_next_steps_are_as_its_family_has_them(cause: Cause) -> None:
    assert cause.severity == EXCEPTIONS.get(cause.code, SEVERITY[cause.code[2]])
    assert cause.next, "what should the user do?"
    assert all(step == step.strip() and not step.endswith(".") and "\n" not in step for step in cause.next)


@each_cause()
def test_no_section_is_empty_and_before_and_after_show_code(cause: Cause) -> None:
    sections = dict(zip(*[iter(re.split(r"^## (.+)$", cause.page, flags=re.MULTILINE)[1:])] * 2, strict=True))

    assert all(body.strip() for body in sections.values())
    assert "```" in sections["Before"] and "```" in sections["After"]


@each_cause()
def test_python_examples_are_valid_python(cause: Cause) -> None:
    for block in re.findall(r"```python\n(.*?)```", cause.page, re.DOTALL):
        ast.parse(block)  # not compiled: an excerpt may hold a lone `continue` or `return`


@each_cause()
def test_docs_page_is_up_to_date(cause: Cause) -> None:
    path = ROOT / "docs" / "causes" / f"{cause.code}.md"

    assert path.is_file() and path.read_text() == page_of(cause), "run: make docs"


def test_docs_hold_no_other_pages() -> None:
    expected = {f"{cause.code}.md" for cause in CAUSES} | {"index.md"}

    assert {path.name for path in (ROOT / "docs" / "causes").glob("*.md")} == expected
    assert (ROOT / "docs" / "causes" / "index.md").read_text() == index_page(CAUSES), "run: make docs"


def test_every_cause_is_expected_by_some_test() -> None:
    told = (path for path in files_below(ROOT / "tests") if "house" not in path.parts)
    text = "".join(path.read_text() for path in told)
    forgotten = [cause.code for cause in CAUSES if cause.code not in text and cause.code not in NEEDS_NO_STORY]

    assert not forgotten, f"no test mentions {', '.join(forgotten)}"


def test_codes_named_in_the_source_exist() -> None:
    known = {cause.code for cause in CAUSES}
    for path in SRC.rglob("*.py"):
        named = set(re.findall(r"\bRW\d{3}\b", path.read_text()))
        assert named <= known, f"{path.relative_to(SRC)} names {sorted(named - known)}, which have no page"


def files_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.suffix in {".py", ".toml", ".json", ".expected", ".txt"}]
