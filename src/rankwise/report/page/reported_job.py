"""The data that every part of the page draws from: the evidence, the findings, and which ranks they name."""

from __future__ import annotations

import os.path
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice

from rankwise.evidence.frames import is_user_file, user_frames
from rankwise.evidence.records import Frame, JobEvidence, Raised, RankEvidence, Stack
from rankwise.findings import Finding, Wait, where

_LIBRARY_ROOT = re.compile(r"^.*(?:site-packages|dist-packages|/lib/python3[^/]*)/")


@dataclass(frozen=True)
class ReportedJob:
    """One job, seen through its verdict; only the root cause names culprits."""

    job: JobEvidence
    findings: tuple[Finding, ...]
    culprits: frozenset[int] = frozenset()
    waiting: dict[int, Wait] = field(default_factory=dict)
    project: str = ""  # the folder that all of the user's files share

    def short(self, file: str) -> str:
        """A path as one would say it: the user's from the project's folder on, a library's from the package on."""
        if self.project and file.startswith(self.project):
            return file[len(self.project) :]
        return file if is_user_file(file) else _LIBRARY_ROOT.sub("", file)

    def place(self, frame: Frame) -> str:
        return where(self.short(frame.file), frame.line, frame.function)

    def source_of(self, file: str) -> str | None:
        """The text of a file named in full or by its end; None where it is not there or not unique."""
        if file in self.job.sources:
            return self.job.sources[file]
        ending = "/" + file.removeprefix("./").lstrip("/")
        matches = [text for path, text in self.job.sources.items() if path.endswith(ending)]
        return matches[0] if len(matches) == 1 else None

    def line_of(self, frame: Frame) -> str:
        lines = (self.source_of(frame.file) or "").splitlines()
        return lines[frame.line - 1].strip() if 0 < frame.line <= len(lines) else ""


def reported_job(job: JobEvidence, findings: Iterable[Finding]) -> ReportedJob:
    found = tuple(findings)
    culprits = frozenset(place.rank for finding in found[:1] for place in finding.culprits if place.rank is not None)
    waiting = {wait.rank: wait for finding in reversed(found) for wait in finding.waiting if wait.rank is not None}
    return ReportedJob(
        job,
        found,
        culprits,
        {rank: wait for rank, wait in waiting.items() if rank not in culprits},
        _shared_folder(job.sources or _files(job)),
    )


def user_stack(stack: Stack) -> Stack:
    """The frames of the user's own code; all of them where there is none, so that a rank inside a library still shows."""
    return user_frames(stack) or stack


def main_stack(rank: RankEvidence) -> Stack:
    """Where the rank is, or was when it ended: what was seen last; empty where that was not seen."""
    threads = sorted(rank.threads, key=lambda thread: not thread.is_main)
    if raised := raised_last(rank):
        return raised.stack
    if rank.ended and rank.ended.stack:
        return rank.ended.stack
    if threads:
        return threads[0].frames
    return next((call.stack for call in reversed(rank.calls) if call.is_open), ())


def raised_last(rank: RankEvidence) -> Raised | None:
    """The exception the rank stands at; None if it has gone on since, as a look at its threads shows."""
    first = rank.raised[0] if rank.raised else None
    return first if first is not None and (not rank.alive or not rank.threads or first.time_ns > rank.threads_ns) else None


def _files(job: JobEvidence) -> set[str]:
    return {frame.file for rank in islice(job.ranks.values(), 256) for frame in main_stack(rank)}


def _shared_folder(files: Iterable[str]) -> str:
    folders = [file.rpartition("/")[0] or "/" for file in files if file.startswith("/") and is_user_file(file)]
    shared = os.path.commonpath(folders) if folders else "/"
    return "" if shared == "/" else shared + "/"
