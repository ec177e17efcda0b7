"""The page in a real browser: it shows what is served, asks for the token, and its form gets an answer from the model."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rankwise.pool import Model, Pool
from rankwise.protocol import TensorSpec
from rankwise.serve.models_file import Entry
from rankwise.serve.serving import Serving, serve
from tests.report.browser import Browser, find_chromium

CHROMIUM = find_chromium()
pytestmark = [
    pytest.mark.live,
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium, chromium-browser or google-chrome on this machine"),
]
TOKEN, LONG_S = "a token", 60
NASTY = "<img src=x onerror=alert(1)>"  # a name that would run something where it is taken for markup


@pytest.fixture(scope="module")
def serving() -> Iterator[Serving]:
    spec = (TensorSpec("x", "FP32", (-1, 4)),)
    model = Model("tests.serve.models:moody", max_batch=8, check_rows=False)
    entries = [
        Entry("moody", "1", "moody", model, spec, (TensorSpec("y", "FP32", (-1, 4)),)),
        Entry(NASTY, "1", "nasty", Model("tests.serve.models:broken"), preload=False),
    ]
    with Pool({entry.key: entry.model for entry in entries}, workers=1) as pool:
        pool.load("moody").result(LONG_S)
        running = serve(pool, entries=entries, http="127.0.0.1:0", grpc="", block=False, token=TOKEN)
        assert running is not None
        with running:
            yield running


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    assert CHROMIUM is not None
    with Browser(CHROMIUM, tmp_path_factory.mktemp("profile")) as browser:
        yield browser


def until(browser: Browser, expression: str) -> Any:
    end = time.monotonic() + LONG_S
    while not (found := browser.ask(expression)):
        assert time.monotonic() < end, (expression, browser.ask("document.body.innerText"), browser.complaints)
        time.sleep(0.05)
    return found


def press(browser: Browser, form: str) -> None:
    browser.ask(f"document.querySelector('{form} button').click()")


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_a_visitor_sees_models_and_tries_one(width: int, scheme: str, serving: Serving, browser: Browser) -> None:
    address = f"http://{serving.http}"
    browser.open(f"{address}/", width, scheme=scheme)
    browser.ask("sessionStorage.clear()")
    browser.open(f"{address}/", width, scheme=scheme)
    until(browser, "!document.getElementById('token-form').hidden")
    until(browser, "document.getElementById('state').textContent.includes('token')")  # the page still reads the body of the refusal
    browser.ask(f"document.getElementById('token').value = {json.dumps(TOKEN)}")
    press(browser, "#token-form")
    until(browser, "document.getElementById('state').textContent.startsWith('ready')")
    assert browser.ask("document.getElementById('token-form').hidden")

    names = browser.ask("[...document.querySelectorAll('#models tbody tr td:first-child')].map(cell => cell.textContent)")
    assert names == ["moody 1", f"{NASTY} 1"]
    assert "READY" in browser.ask("document.querySelector('#models tbody tr').textContent")
    assert browser.ask("document.querySelector('#workers tbody').textContent").startswith("1cpu")

    assert "x: FP32 [-1, 4]" in browser.ask("document.querySelector('#try label').textContent")
    assert browser.ask("document.querySelector('#try textarea').value") == "[[0,0,0,0]]"
    browser.ask("document.querySelector('#try textarea').value = '[[1,2,3,4],[5,6,7,8]]'")
    press(browser, "#try")
    answer = until(browser, "document.getElementById('answer').textContent")
    assert answer.startswith("200") and '"shape":[2,4]' in answer and '"data":[2.0,4.0,6.0,8.0,10.0,12.0,14.0,16.0]' in answer
    browser.ask("document.querySelector('#try textarea').value = '[[-1,0,0,0]]'")
    press(browser, "#try")
    until(browser, "document.getElementById('answer').textContent.startsWith('500')")
    until(browser, "document.getElementById('findings').textContent.includes('this row is bad')")
    until(browser, "document.querySelectorAll('#models tbody td')[9].textContent != '0'")

    assert browser.ask("document.querySelectorAll('#models img, #which img').length") == 0
    sticking = """[...document.querySelectorAll('body *')].filter(e => !e.closest('.scroll'))
        .filter(e => e.getBoundingClientRect().right > innerWidth + 0.5).map(e => e.tagName + ' ' + e.id)"""
    assert browser.ask(sticking) == []
    if folder := os.environ.get("RANKWISE_SCREENSHOTS"):
        browser.screenshot(Path(folder) / f"serve-{width}.png")
    known = (f"request: {address}/", "request: data:", "log: Failed to load resource: the server responded with a status of")
    assert [text for text in browser.complaints if not text.startswith(known)] == []
