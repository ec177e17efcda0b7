"""Every check has a page: its doc block, which names the causes it can find."""

from __future__ import annotations

import re

import pytest

from rankwise.causes import load_cause
from rankwise.preflight.catalogue import Check, all_checks


@pytest.mark.parametrize("check", all_checks(), ids=lambda check: check.name)
def test_a_check_has_a_page_that_names_its_causes(check: Check) -> None:
    assert check.page.count("\n\n") >= 2, "what it looks at, and when it fails or warns"
    for code in re.findall(r"RW\d{3}", check.page):
        load_cause(code)
    assert re.search(r"(Fails|Warns) with RW\d{3}", check.page)
