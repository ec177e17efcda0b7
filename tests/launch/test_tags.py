"""One stream, several ranks: every byte comes out again, once, and at the right rank, wherever the stream was cut."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwise.launch.tags import TagReader, tagging_environment

PIECES = st.lists(st.tuples(st.integers(0, 3), st.text("ab[<1,:>] ", max_size=8), st.booleans()), max_size=12)


def read(*parts: bytes) -> dict[int | None, bytes]:
    reader = TagReader()
    said: dict[int | None, bytes] = {}
    for rank, piece in [*(found for part in parts for found in reader.feed(part)), *reader.rest()]:
        said[rank] = said.get(rank, b"") + piece
    return said


@given(pieces=PIECES, cuts=st.lists(st.integers(0, 400), max_size=6))
def test_every_rank_gets_back_what_it_said(pieces: list[tuple[int, str, bool]], cuts: list[int]) -> None:
    stream, said = b"", {}
    for rank, text, has_end in pieces:
        piece = text.encode() + (b"\n" if has_end else b".")
        stream += b"[1,%d]<stdout>:" % rank + piece
        said[rank] = said.get(rank, b"") + piece
    places = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]

    assert read(*(stream[a:b] for a, b in itertools.pairwise(places))) == said


def test_a_line_without_a_tag_is_the_launchers() -> None:
    assert read(b"[1,0]<stdout>:one\n---- mpirun detected\nthat [1,1]<stderr>:two") == {
        0: b"one\n",
        None: b"---- mpirun detected\nthat ",
        1: b"two",
    }


@pytest.mark.parametrize(
    ("command", "is_asked"),
    [
        (("mpirun", "-n", "2", "python"), True),
        (("/usr/bin/mpiexec", "python"), True),
        (("mpirun", "--tag-output", "python"), False),
        (("python", "mpirun"), False),
    ],
)
def test_only_mpirun_is_asked_and_only_if_the_user_has_not_chosen(command: tuple[str, ...], is_asked: bool) -> None:
    assert bool(tagging_environment(command)) == is_asked
