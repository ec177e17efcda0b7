"""report.html: what it shows, that hostile evidence stays text, and that it stays small and quick at any world size."""

from __future__ import annotations

import base64
import hashlib
import re
import time
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest

from rankwise.evidence.collective_log import CollectiveLog, Signature
from rankwise.evidence.records import Call, Ended, Frame, JobEvidence, RankEvidence, Sample, Thread
from rankwise.report.html import report_html
from rankwise.report.verdict import verdict_dict
from tests.report.example_job import NOW_NS, START_NS, crash, hostile, skipped_collective

PAYLOADS = [
    "<script>document.title='owned'</script>",
    "\"><img src=x onerror=document.title='owned'>",
    "' onmouseover='document.title=1' x='",
    "</style></title></code></details><iframe src=//evil.example></iframe>",
    "<!--", "]]>", "<a href=javascript:document.title=1>", "&lt;script&gt;", "`**`<b>", "\x00\x1b[2J\u202e\udcff",
    "`<svg/onload=1>` **<b>**", "../../../etc/passwd", "%s{0}{job}", "<" * 3000, "long" * 3000,
]  # fmt: skip
TAGS = {
    "html", "head", "meta", "title", "style", "body", "main", "header", "section", "article", "div", "p", "span", "b", "em", "i", "small",
    "code", "pre", "h1", "h2", "h3", "h4", "dl", "dt", "dd", "ul", "ol", "li", "figure", "figcaption", "details", "summary",
    "table", "thead", "tbody", "tr", "th", "td",
}  # fmt: skip
ATTRIBUTES = {
    "class", "id", "lang", "charset", "http-equiv", "content", "name", "title", "scope", "data-label", "colspan", "tabindex", "aria-hidden",
}  # fmt: skip


class Page(HTMLParser):
    """The page taken apart: tags and attributes used, the text, and whether every tag was closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.ids: dict[str, int] = {}
        self.text = ""
        self._open: list[str] = []
        self.feed(page)
        self.close()
        assert self._open == [], self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)
        self.ids.update({value: len(self.text) for name, value in attrs if name == "id" and value})
        if tag != "meta":
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self._open:
            self.text += data


def test_verdict_comes_first_and_every_section_is_there() -> None:
    page = Page(report_html(*skipped_collective(4)))

    order = sorted(page.ids, key=lambda name: page.ids[name])
    assert order == ["verdict", "ranks", "timeline", "stacks", "last-output", "not-seen", "job"]
    for words in (
        "rank 3 never called all_reduce #243, which 3 other ranks are waiting in",
        "train.py:13 skips the step",
        "take the decision on all ranks together",
        "RW201 in general: A rank skipped a collective",
        "Every rank of a process group must call the same collectives",
        "Ranks part at #243:",
        "rank 3 never got there; the last was #242 all_reduce of float32(1048576)",
        "3 frames inside torch, down to _engine_run_backward()",
        "DataLoader worker pid 4900: data/loading.py:9 __getitem__()",
        "rank 0: py-spy was refused ptrace",
        "the kernel log could not be read",
        "rankwise run --nproc-per-node=4 train.py --epochs 12",
        "2026-09-21 14:13:20 UTC",
        "2.13.0+cpu",
        "step 41: loss is nan, skipping",
    ):
        assert words in page.text, words


def test_marks_the_culprits_line_in_its_source() -> None:
    page = report_html(*skipped_collective(4))

    marked = re.findall(r'<li class="here"><span>(\d+)</span><code>(.*?)</code>', page)
    assert marked[:2] == [("15", "        continue"), ("16", "loss.backward()")]


def test_shows_one_row_per_rank_in_a_small_job_and_merges_in_a_large_one() -> None:
    small, large = report_html(*skipped_collective(4)), report_html(*skipped_collective(64))

    assert re.findall(r'<th scope="row"><b class="whole">(.*?)</b>', small) == ["0", "1", "2", "3"]
    assert re.findall(r'<th scope="row"><b class="whole">(.*?)</b>', large) == ["31", "0-30, 32-63"]
    assert "63 ranks, same" in large


def test_a_crash_shows_the_exception_and_its_traceback() -> None:
    text = Page(report_html(*crash())).text

    assert "raised KeyError" in text and "KeyError: 'crop_0713'" in text
    assert "traceback of rank 1" in text and "Traceback (most recent call last):" in text


def test_a_job_without_findings_or_ranks_still_has_a_page() -> None:
    job = JobEvidence((), 0, 0, None, 10.0, {})

    text = Page(report_html(verdict_dict("completed", 0, None, 1.0, None, []), job)).text

    assert "Nothing was found." in text and "No collective was seen." in text


def test_ranks_nobody_saw_are_named() -> None:
    verdict, job = skipped_collective(4)

    text = Page(report_html(verdict, replace(job, world_size=6))).text

    assert text.count("never seen") == 2


def test_loads_nothing_and_runs_nothing() -> None:
    page = report_html(*skipped_collective(4))

    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)
    assert policy and style
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    assert policy[1].replace("&#x27;", "'") == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    assert not re.search(r"url\(|@import|https?:", page)
    parsed = Page(page)
    assert parsed.tags <= TAGS and parsed.attributes <= ATTRIBUTES


@pytest.mark.parametrize("payload", PAYLOADS, ids=lambda payload: ascii(payload[:20]))
def test_hostile_evidence_stays_text(payload: str) -> None:
    page = report_html(*hostile(payload))

    parsed = Page(page)
    assert parsed.tags <= TAGS and parsed.attributes <= ATTRIBUTES
    assert len(page.encode("utf-8")) < 1_000_000
    assert "\x00" not in page and "\x1b" not in page and "\u202e" not in page
    if payload.isprintable() and len(payload) < 100:
        assert payload.replace("`", "").replace("**", "") in parsed.text.replace("`", "").replace("**", "")


def test_environment_variables_are_not_shown() -> None:
    verdict, job = skipped_collective(2)
    ranks = {rank: replace(evidence, env={"API_TOKEN": "hunter2"}) for rank, evidence in job.ranks.items()}

    assert "hunter2" not in report_html(verdict, replace(job, ranks=ranks))


@pytest.mark.parametrize(("world_size", "most_bytes", "most_s"), [(4, 100_000, 5), (64, 200_000, 5), (4096, 1_000_000, 15)])
def test_stays_small_and_quick(world_size: int, most_bytes: int, most_s: float) -> None:
    verdict, job = skipped_collective(world_size, num_slots=400)
    started = time.process_time()

    page = report_html(verdict, job)

    assert time.process_time() - started < most_s
    assert len(page.encode()) < most_bytes
    assert f"ranks {'0-2' if world_size == 4 else f'0-30, 32-{world_size - 1}'}" in page


@pytest.mark.parametrize(
    ("world_size", "most_bytes"), [(64, 1_000_000), (512, 3_000_000), pytest.param(4096, 3_000_000, marks=pytest.mark.live)]
)
def test_stays_small_and_quick_when_every_rank_is_different(world_size: int, most_bytes: int) -> None:
    verdict, job = unlike(world_size)
    started = time.process_time()

    page = report_html(verdict, job)

    assert time.process_time() - started < 15
    assert len(page.encode()) < most_bytes
    assert Page(page).tags <= TAGS


@pytest.mark.parametrize("world_size", [-1, 0, 10**15])
def test_a_senseless_world_size_does_no_harm(world_size: int) -> None:
    verdict, job = skipped_collective(2)

    page = report_html({**verdict, "world_size": world_size}, replace(job, world_size=world_size))

    assert len(page.encode()) < 1_000_000


def unlike(world_size: int) -> tuple[dict[str, Any], JobEvidence]:
    """No two ranks are at the same line, in the same slot, in the same group, or end the same way."""
    ranks = {}
    for rank in range(world_size):
        log = CollectiveLog()
        for seq in range(1, 45 + rank % 10):
            group = "0" if seq % 3 else f"group-{rank}-{seq % 7}"
            log.add(seq, Signature(group, f"op_{(rank * seq) % 97}", (rank, seq), "float32"), START_NS + seq, seq % 5 != 0)
        stack = tuple(Frame(f"/home/ada/part_{rank}/file_{depth}.py", rank + depth + 1, f"step_{rank}_{depth}") for depth in range(12))
        ranks[rank] = RankEvidence(
            rank,
            pid=rank,
            host=f"host-{rank}",
            torch=f"2.{rank}",
            collectives=log,
            calls=tuple(Call("send" if i % 2 else "recv", i, 0, stack[:2], peer=(rank * i) % 911) for i in range(20)),
            threads=(Thread("MainThread", stack, is_main=True),) if rank % 3 else (),
            samples=(Sample(NOW_NS, "RSDTZ"[rank % 5], rss=rank << 20),),
            ended=None if rank % 3 else Ended("signal", NOW_NS, signal=rank % 64),
            blind=(f"no ptrace on host {rank}",),
        )
    verdict, job = skipped_collective(4)
    verdict["findings"][0]["culprits"] = [
        {"rank": rank, "file": f"part_{rank}/file_0.py", "line": rank + 1, "function": "step"} for rank in ranks
    ]
    return verdict, replace(job, ranks=ranks, world_size=world_size)
