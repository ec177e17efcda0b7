"""Markup: what is escaped, what is left out, and a cause's page as HTML."""

from __future__ import annotations

import pytest

from rankwise.report.page.markup import Html, block, classes, escape, inline, joined, page_html, tag


def test_text_is_escaped_and_markup_is_not_escaped_again() -> None:
    assert tag("p", "a<b & 'c'", tag("b", 1)) == "<p>a&lt;b &amp; &#x27;c&#x27;<b>1</b></p>"
    assert isinstance(tag("p"), Html) and escape(Html("<i>")) == "<i>"


def test_attributes_are_named_as_in_html_escaped_and_left_out_where_empty() -> None:
    assert (
        tag("td", class_="a", data_label='"x"', title=None, id="", colspan=0)
        == '<td class="a" data-label="&quot;x&quot;" colspan="0"></td>'
    )


def test_what_has_no_inside_is_not_closed_and_none_is_nothing() -> None:
    assert tag("br") == "<br>" and tag("p", None, 0) == "<p>0</p>" and joined([None]) == ""


def test_long_text_is_cut() -> None:
    assert len(escape("x" * 5000)) < 4100 and len(block("x" * 5000)) == 5000 and len(block("x" * 20_000)) < 12_100


def test_line_breaks_are_kept_and_what_would_act_is_written_out() -> None:
    assert "\n" in block("a\nb") and "\x1b" not in block("\x1b[2J")


@pytest.mark.parametrize(
    ("text", "markup"),
    [
        ("a `b<c` d", "a <code>b&lt;c</code> d"),
        ("**a** and `b`", "<b>a</b> and <code>b</code>"),
        ("a < b", "a &lt; b"),
        ("` alone", "` alone"),
    ],
)
def test_code_and_bold_are_marked(text: str, markup: str) -> None:
    assert inline(text) == markup


def test_a_page_becomes_headings_lists_paragraphs_and_code_without_its_title() -> None:
    page = "# Title\n\n## What\n\nOne\nthought.\n\n- a\n- `b`\n\n```python\nif a < b:\n    pass\n```\n\nLast.\n"

    assert page_html(page) == (
        "<h4>What</h4><p>One\nthought.</p><ul><li>a\n</li><li><code>b</code></li></ul>"
        '<pre class="code"><code>if a &lt; b:\n    pass</code></pre><p>Last.</p>'
    )


def test_class_names_that_are_empty_leave_no_gap() -> None:
    assert classes("a", "", "b") == "a b" and classes("", "") == ""
