"""Small sources, and who can be at a line of them."""

from __future__ import annotations

import textwrap

from rankwise.evidence.records import Frame
from rankwise.source.book import SourceBook

FILE = "/home/ada/segmenter/train.py"
WORLD = 4
ALL = [0, 1, 2, 3]


def book_of(source: str, **others: str) -> SourceBook:
    return SourceBook(
        {FILE: textwrap.dedent(source), **{f"/home/ada/segmenter/{name}.py": textwrap.dedent(text) for name, text in others.items()}}
    )


def line_of(book: SourceBook, words: str = "dist.barrier()", file: str = FILE) -> int:
    lines = book.sources[file].splitlines()
    return next(i for i, line in enumerate(lines, 1) if words in line)


def reaching(source: str, *, function: str = "main", words: str = "dist.barrier()", world_size: int = WORLD, **others: str) -> list[int]:
    """The ranks that can be at `dist.barrier()`."""
    book = book_of(source, **others)
    ranks, _ = book.ranks_reaching((Frame(FILE, line_of(book, words), function),), list(range(world_size)), world_size)
    return sorted(ranks)


LOOP = """\
import torch

def train(loader):
    for epoch in range(3):
        for batch in loader:
            if batch is None:
                continue
            try:
                loss = model(batch)
            except ValueError:
                log("skipped")
            if done:
                break
            loss.backward()
        dist.barrier()
    finish()
"""
