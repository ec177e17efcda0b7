"""The page in a real browser: nothing overflows, nothing is loaded, nothing runs, and the verdict is what one sees first.

Screenshots are left in the folder named by RANKWISE_SCREENSHOTS, where it is set.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rankwise.evidence.records import JobEvidence
from rankwise.report.html import report_html
from tests.report.browser import Browser, find_chromium
from tests.report.example_job import crash, hostile, skipped_collective

CHROMIUM = find_chromium()
PHONE, DESKTOP = 390, 1280
# What sticks out of the window, but for what scrolls inside its own box and the blanks at which a line was wrapped.
OVERFLOWING = """[...document.querySelectorAll('body *')]
    .filter(e => !e.closest('.scroll') && !e.matches('pre *'))
    .filter(e => e.getBoundingClientRect().width && e.getBoundingClientRect().right > innerWidth + 0.5)
    .map(e => e.tagName + '.' + e.className + ' ' + e.textContent.slice(0, 60))"""
# Text that its own box cuts off, which no scroll bar would ever show.
CUT_OFF = """[...document.querySelectorAll('body *')]
    .filter(e => !e.closest('.scroll') && e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).overflowX == 'hidden')
    .map(e => e.tagName + '.' + e.className)"""
PARTING_IN_SIGHT = """(() => {
    const box = document.querySelector('.scroll').getBoundingClientRect();
    return [...document.querySelectorAll('.scroll:first-of-type td.parting')].every(e => {
        const r = e.getBoundingClientRect();
        return r.left >= box.left && r.right <= box.right + 0.5;
    });
})()"""

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium, chromium-browser or google-chrome on this machine"),
]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    assert CHROMIUM is not None
    with Browser(CHROMIUM, tmp_path_factory.mktemp("profile")) as one:
        yield one


def show(browser: Browser, tmp_path: Path, story: tuple[dict[str, Any], JobEvidence], width: int, scheme: str = "light") -> None:
    page = tmp_path / "report.html"
    page.write_text(report_html(*story), encoding="utf-8")
    browser.open(page, width, scheme=scheme)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [PHONE, DESKTOP])
@pytest.mark.parametrize("world_size", [4, 64])
def test_fits_the_window_and_says_the_verdict_first(browser: Browser, tmp_path: Path, world_size: int, width: int, scheme: str) -> None:
    show(browser, tmp_path, skipped_collective(world_size), width, scheme)
    screenshot(browser, tmp_path, f"{world_size}-ranks-{width}-{scheme}.png")

    assert browser.ask("innerWidth") == width
    assert browser.ask("document.documentElement.scrollWidth") <= width
    assert browser.ask(OVERFLOWING) == []
    assert browser.ask(CUT_OFF) == []
    headline = browser.ask("(r => [r.top, r.bottom])(document.querySelector('h1').getBoundingClientRect())")
    assert headline[0] > 0 and headline[1] < 320, "the verdict is below the fold"
    assert browser.ask("document.querySelector('h1').innerText").lower().startswith(f"rank {min(world_size - 1, 31)} never called")
    assert browser.ask(PARTING_IN_SIGHT), "the slot where ranks part has to be scrolled to"
    assert browser.complaints == []


def test_light_and_dark_follow_the_reader(browser: Browser, tmp_path: Path) -> None:
    colours = []
    for scheme in ("light", "dark"):
        show(browser, tmp_path, skipped_collective(4), DESKTOP, scheme)
        colours.append(browser.ask("getComputedStyle(document.body).backgroundColor"))

    assert colours == ["rgb(245, 246, 248)", "rgb(14, 17, 22)"], "the style sheet was not applied, or not for both"


def test_everything_unfolded_still_fits_a_phone(browser: Browser, tmp_path: Path) -> None:
    for story in (skipped_collective(64), crash()):
        show(browser, tmp_path, story, PHONE)
        browser.ask("document.querySelectorAll('details').forEach(e => { e.open = true })")

        assert browser.ask("document.documentElement.scrollWidth") <= PHONE
        assert browser.ask(OVERFLOWING) == []


def test_text_stands_out_from_its_background(browser: Browser, tmp_path: Path) -> None:
    """Every piece of text reaches a contrast of 4.5, the usual bar for normal text."""
    for scheme in ("light", "dark"):
        show(browser, tmp_path, skipped_collective(64), DESKTOP, scheme)

        assert browser.ask(LOW_CONTRAST) == [], scheme


@pytest.mark.parametrize("width", [PHONE, DESKTOP])
def test_hostile_evidence_does_nothing(browser: Browser, tmp_path: Path, width: int) -> None:
    payload = "<script>document.title='owned'</script>\"><img src=http://evil.example/x onerror=document.title='owned'>"
    show(browser, tmp_path, hostile(payload), width)

    assert "owned" in browser.ask("document.body.innerText"), "shown as text"
    assert browser.ask("document.querySelectorAll('script, img, iframe, svg, link').length") == 0
    assert not browser.ask("document.title").startswith("owned")
    assert browser.ask("document.documentElement.scrollWidth") <= width
    assert browser.complaints == []


def test_4096_ranks_are_drawn(browser: Browser, tmp_path: Path) -> None:
    show(browser, tmp_path, skipped_collective(4096), PHONE)
    screenshot(browser, tmp_path, "4096-ranks-390-light.png")

    assert browser.ask("document.querySelectorAll('.map i').length") == 4096
    assert browser.ask("document.documentElement.scrollWidth") <= PHONE


def screenshot(browser: Browser, tmp_path: Path, name: str) -> None:
    folder = Path(os.environ.get("RANKWISE_SCREENSHOTS") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    browser.screenshot(folder / name)
    assert (folder / name).stat().st_size > 20_000


LOW_CONTRAST = """(() => {
    const parse = c => (c.match(/[\\d.]+/g) || []).map(Number);
    const light = ([r, g, b]) => [r, g, b].map(v => v / 255).map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
        .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
    const behind = e => {
        for (; e; e = e.parentElement) {
            const c = parse(getComputedStyle(e).backgroundColor);
            if (c.length == 3 || c[3] > .99) return c;
        }
        return [255, 255, 255];
    };
    const bad = new Set();
    for (const e of document.querySelectorAll('body *')) {
        if (![...e.childNodes].some(n => n.nodeType == 3 && n.data.trim()) || !e.getClientRects().length) continue;
        const [a, b] = [light(parse(getComputedStyle(e).color)), light(behind(e))];
        const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
        if (ratio < 4.5) bad.add(e.tagName + '.' + e.className + ' ' + ratio.toFixed(2));
    }
    return [...bad];
})()"""
