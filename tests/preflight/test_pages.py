"""Every check has a page: its doc block, which names the causes it can find."""

from __future__ import annotations

import re

import pytest

from rankwise.causes import load_cause
from rankwise.preflight.catalogue import Check, all_checks
from rankwise.preflight.pages import index_page, page_of
from tests.house.imports import ROOT

FOLDER = ROOT / "docs" / "checks"


@pytest.mark.parametrize("check", all_checks(), ids=lambda check: check.name)
def test_a_check_has_a_page_that_is_up_to_date(check: Check) -> None:
    assert check.page.count("\n\n") >= 2, "what it looks at, and when it fails or warns"
    for code in re.findall(r"RW\d{3}", check.page):
        load_cause(code)
    assert re.search(r"(Fails|Warns) with RW\d{3}", check.page)
    assert (FOLDER / f"{check.name}.md").read_text() == page_of(check), "run: make docs"


def test_there_are_no_other_pages() -> None:
    assert {path.name for path in FOLDER.glob("*.md")} == {f"{check.name}.md" for check in all_checks()} | {"index.md"}
    assert (FOLDER / "index.md").read_text() == index_page(), "run: make docs"
