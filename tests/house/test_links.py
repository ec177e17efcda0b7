"""Links between files of the repository lead somewhere."""

from __future__ import annotations

import re

from tests.house.imports import ROOT

PAGES = [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")]


def test_relative_links_lead_somewhere() -> None:
    links = [(page, link) for page in PAGES for link in re.findall(r"\]\((?!https?:|#)([^)#\s]+)", page.read_text())]
    dead = [f"{page.relative_to(ROOT)}: {link}" for page, link in links if not (page.parent / link).exists()]

    assert links and not dead, dead
