"""The user's code read like a colleague would: who can reach a line, which loop is around it, what may have skipped it."""

from __future__ import annotations

import time

import pytest

from rankwise.evidence.records import Frame
from rankwise.source.book import SourceBook, common_frames
from tests.diagnose.jobs import (
    stack_of,
)
from tests.source.sources import ALL, FILE, LOOP, WORLD, book_of, line_of

# -- branches and twins -------------------------------------------------------------------------------------------------------


def test_tells_who_took_an_earlier_branch() -> None:
    book = book_of("def main():\n    if rank == 1:\n        order.reverse()\n    for x in order:\n        dist.all_reduce(x)\n")

    assert book.branch_taken_by(Frame(FILE, 5, "main"), [0, 1], WORLD) == ({1}, 2)
    assert book.branch_taken_by(Frame(FILE, 5, "main"), [0, 2], WORLD) is None, "both went past it"
    assert book.branch_taken_by(Frame(FILE, 1, "main"), [0, 1], WORLD) is None, "it comes later"


def test_finds_the_call_that_the_other_ranks_have_for_the_same_collective() -> None:
    source = """\
        def main():
            if rank == 0:
                dist.broadcast(x, src=0)
            else:
                if bad:
                    return
                dist.broadcast(y, src=0)
        """

    assert book_of(source).has_twin_call(Frame(FILE, 3, "main"), "broadcast", [1, 2, 3], [0], WORLD)
    assert not book_of(source).has_twin_call(Frame(FILE, 3, "main"), "barrier", [1, 2, 3], [0], WORLD)
    assert not book_of("def main():\n    if rank == 0:\n        dist.barrier()\n").has_twin_call(
        Frame(FILE, 3, "main"), "barrier", [1], [0], 2
    )


# -- loops and skips ----------------------------------------------------------------------------------------------------------


def test_finds_the_loops_around_a_line() -> None:
    book = book_of(LOOP)

    def lines(*text: str) -> list[tuple[int, int]]:
        return [(loop.start, loop.end) for loop in book.loops_at(FILE, line_of(book, *text))]

    assert lines("loss.backward()") == [(5, 14), (4, 15)]
    assert lines() == [(4, 15)]
    assert lines("finish()") == lines("import torch") == []


# -- settings and attributes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ('import os\nos.environ["MASTER_PORT"] = "29501"\n', 2),
        ('import os\nos.environ.setdefault("MASTER_PORT", "29501")\n', 2),
        ('import os\nos.putenv("MASTER_PORT", "1")\n', 2),
        ('env = {\n    "MASTER_ADDR": "a",\n    "MASTER_PORT": "1",\n}\n', 3),
        ('os.environ.update(\n    MASTER_ADDR="a",\n    MASTER_PORT="1",\n)\n', 3),
        ('env = dict(os.environ, MASTER_PORT="1")\n', 1),
        ("#!/bin/sh\n# MASTER_PORT=1\nexport MASTER_PORT=29501\ntorchrun train.py\n", 3),
        ("#!/bin/sh\nMASTER_ADDR=a MASTER_PORT=1 python train.py &\nwait\n", 2),
        ("MASTER_ADDR=localhost\nMASTER_PORT=29500\n", 2),
        ('port = os.environ["MASTER_PORT"]\n', None),
        ("def broken(:\n", None),
        ("", None),
    ],
)
def test_finds_the_line_that_sets_a_variable(source: str, line: int | None) -> None:
    assert SourceBook({"/x/launch": source}).line_setting("/x/launch", "MASTER_PORT") == line


def test_a_variable_whose_name_ends_alike_is_another_one() -> None:
    script = "#!/bin/sh\nLOCAL_RANK=0\nNODE_RANK=1\nRANK=2 python train.py &\nwait\n"

    assert SourceBook({"/x/go.sh": script}).line_setting("/x/go.sh", "RANK") == 4


def test_tells_definitions_uses_and_replacements_of_an_attribute_apart() -> None:
    source = """\
        class Net:
            def __init__(self):
                self.aux = Linear(8, 2)
            def forward(self, x):
                if self.training:
                    x = self.aux(x)
                return self.aux(x)
        net = Net()
        net.aux = Linear(8, 3)
        """

    assert sorted(book_of(source).attribute_lines("aux"), key=lambda found: found[1:]) == [
        (FILE, 3, "define"),
        (FILE, 5, "guarded"),
        (FILE, 7, "use"),
        (FILE, 9, "assign"),
    ]


def test_the_innermost_function_two_stacks_share_is_found() -> None:
    a = stack_of(["net.py:3 gather", "train.py:10 train", "train.py:30 main"])
    b = stack_of(["train.py:12 train", "train.py:30 main"])

    shared = common_frames(a, b)

    assert shared is not None and (shared[0].line, shared[1].line) == (10, 12)
    assert common_frames(a, ()) is None
    assert common_frames(a, stack_of("other.py:1 main")) is None


# -- what cannot be read ------------------------------------------------------------------------------------------------------

HOSTILE = {
    "unparsable": "def main(:\n    dist.barrier()\n",
    "empty": "",
    "nul bytes": "x = 1\0\ndist.barrier()\n",
    "surrogates": "x = '\udce9'\ndist.barrier()\n",
    "a shell script": "#!/bin/sh\nexport RANK=1\ntorchrun train.py\n",
    "python 2": "print 'rank', rank\ndist.barrier()\n",
    "deep parentheses": "x = " + "(" * 5000 + ")" * 5000 + "\ndist.barrier()\n",
    "deep negation": "def main():\n    if " + "not " * 900 + "rank:\n        dist.barrier()\n",
    "deep comparison": "def main():\n    if " + "(" * 80 + "rank" + "+1)" * 80 + " == 0:\n        dist.barrier()\n",
    "long sum": "def main():\n    if rank == " + "1+" * 1500 + "1:\n        dist.barrier()\n",
    "deep attributes": "def main():\n    if a" + ".b" * 1500 + ":\n        dist.barrier()\n",
    "deep blocks": "".join(f"{' ' * i}if rank == 0:\n" for i in range(90)) + " " * 90 + "dist.barrier()\n",
    "a circle": "def a():\n    return b()\ndef b():\n    return a()\ndef main():\n    if a():\n        dist.barrier()\n",
    "itself": "rank = rank\nx = x + 1\ndef main():\n    if x:\n        dist.barrier()\n",
    "huge numbers": """\
def main():
    if rank == 9**9**9 or rank * 'a' * 10**9 or rank << 10**9 or int('9' * 9999):
        dist.barrier()
""",
    "huge repetition": "def main():\n    if [0] * 10**9 or 'x' * 10**10 == rank:\n        dist.barrier()\n",
    "a number of many digits": "def main():\n    if rank == int('" + "9" * 5000 + "') or int(1e999):\n        dist.barrier()\n",
    "format": "def main():\n    if '%0999999999d' % rank or f'{rank:999999999}':\n        dist.barrier()\n",
}


@pytest.mark.filterwarnings("ignore::SyntaxWarning")
@pytest.mark.parametrize("kind", HOSTILE)
def test_any_source_is_survived_quickly(kind: str) -> None:
    source = HOSTILE[kind]
    book = SourceBook({FILE: source})
    line = max(1, source.count("\n"))
    frame = Frame(FILE, line, "main")
    started = time.process_time()

    ranks, _ = book.ranks_reaching((frame,), ALL, WORLD)
    book.skips_before(FILE, line)
    book.loops_at(FILE, line)
    book.branch_taken_by(frame, ALL, WORLD)
    book.has_twin_call(frame, "barrier", [1], [0], WORLD)
    book.line_setting(FILE, "RANK")
    book.attribute_lines("weight")

    assert ranks <= set(ALL) and ranks
    assert time.process_time() - started < 5


def test_files_and_lines_that_are_not_there_tell_nothing() -> None:
    book = book_of("dist.barrier()\n")

    assert book.ranks_reaching((Frame("/gone.py", 7, "main"), Frame(FILE, 999, "main"), Frame(FILE, 0, "main")), ALL, WORLD) == (
        set(ALL),
        None,
    )
    assert book.line_text("/gone.py", 7) == book.line_text(FILE, 999) == book.line_text(FILE, -1) == ""
    assert book.guards("/gone.py", 1) == book.loops_at("/gone.py", 1) == book.skips_before("/gone.py", 1) == []
    assert book.line_setting("/gone.py", "RANK") is None
