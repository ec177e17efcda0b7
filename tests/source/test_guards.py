"""What must hold for a line to run, whatever form the branch has, and what may have skipped it."""

from __future__ import annotations

import pytest

from rankwise.evidence.records import Frame
from tests.source.sources import ALL, FILE, LOOP, book_of, line_of, reaching

FORMS = {
    "if on one line": ("def main():\n    if rank == 0: dist.barrier()\n", [0]),
    "early return": ("def main():\n    if dist.get_rank() != 0:\n        return\n    x = 1\n    dist.barrier()\n", [0]),
    "early return on one line": ("def main():\n    if rank != 0: return\n    dist.barrier()\n", [0]),
    "early return in the else": ("def main():\n    if rank == 0:\n        x = 1\n    else:\n        return\n    dist.barrier()\n", [0]),
    "early return in both": (
        "def main():\n    if rank == 0:\n        return 1\n    elif rank == 1:\n        return 2\n    dist.barrier()\n",
        [2, 3],
    ),
    "exit": ("def main():\n    if rank == 2:\n        sys.exit(0)\n    dist.barrier()\n", [0, 1, 3]),
    "raise": ("def main():\n    if rank:\n        raise SystemExit\n    dist.barrier()\n", [0]),
    "continue": ("def main():\n    for x in y:\n        if rank == 1:\n            continue\n        dist.barrier()\n", [0, 2, 3]),
    "break": ("def main():\n    while True:\n        if rank == 1:\n            break\n        dist.barrier()\n", [0, 2, 3]),
    "elif": ("def main():\n    if rank == 0:\n        a()\n    elif rank == 1:\n        dist.barrier()\n", [1]),
    "last else": (
        "def main():\n    if rank == 0:\n        a()\n    elif rank == 1:\n        b()\n    else:\n        dist.barrier()\n",
        [2, 3],
    ),
    "nested": ("def main():\n    if rank < 2:\n        if rank > 0:\n            dist.barrier()\n", [1]),
    "inside with and try": (
        """\
def main():
    if rank == 0:
        try:
            with x:
                dist.barrier()
        finally:
            pass
""",
        [0],
    ),
    "while": ("def main():\n    while rank == 0:\n        dist.barrier()\n", [0]),
    "module level": ("if rank == 0:\n    dist.barrier()\n", [0]),
    "over several lines": (
        "def main():\n    if (\n        rank\n        == 0\n    ):\n        foo(\n            dist.barrier(),\n        )\n",
        [0],
    ),
    "conditional expression": ("def main():\n    x = dist.barrier() if rank == 0 else None\n", [0]),
    "conditional expression, its else": ("def main():\n    x = [y] if rank == 0 else gather(dist.barrier())\n", [1, 2, 3]),
    "and": ("def main():\n    rank == 0 and dist.barrier()\n", [0]),
    "or": ("def main():\n    return get_rank() == 0 or dist.barrier()\n", [1, 2, 3]),
    "comprehension": ("def main():\n    z = [dist.barrier() for x in y if rank == 1]\n", [1]),
    "conditional expression in another call": ("def main():\n    print(x, dist.barrier() if rank == 0 else 0)\n", ALL),
    "both ways wait": ("def main():\n    x = dist.barrier() if rank == 0 else gather(x)\n", ALL),
    "the test may wait": ("def main():\n    x = dist.barrier() if first(y) and rank == 0 else 0\n", ALL),
    "a lambda runs elsewhere": ("def main():\n    run(lambda: rank == 0 and dist.barrier())\n", ALL),
    "not under the branch": ("def main():\n    if rank == 0:\n        save()\n    dist.barrier()\n", ALL),
    "return further down": ("def main():\n    dist.barrier()\n    if rank != 0:\n        return\n    save()\n", ALL),
    "return of an inner function": (
        "def main():\n    def f():\n        if rank != 0:\n            return\n    f()\n    dist.barrier()\n",
        ALL,
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_knows_the_forms_a_branch_can_have(form: str) -> None:
    source, ranks = FORMS[form]

    assert reaching(source) == ranks


def test_a_call_is_told_from_others_of_its_line_by_the_function_that_was_called() -> None:
    book = book_of("def main():\n    x = collect(y) if is_primary() else keep(y)\n")

    assert [guard.condition for guard in book.guards(FILE, 2, "collect")] == ["is_primary()"]
    assert [guard.condition for guard in book.guards(FILE, 2, "keep")] == ["not is_primary()"]
    assert book.guards(FILE, 2) == []


def test_guards_are_told_from_the_outside_in() -> None:
    book = book_of("def main():\n    if a:\n        if b: return\n        while c:\n            dist.barrier()\n")

    guards = book.guards(FILE, 5)

    assert [(guard.text, guard.wanted) for guard in guards] == [("a", True), ("b", False), ("c", True)]


def test_finds_what_may_have_skipped_a_line() -> None:
    book = book_of(LOOP)

    skips = book.skips_before(FILE, line_of(book, "loss.backward()"))

    assert [(skip.kind, skip.line, skip.guard) for skip in skips] == [("continue", 7, "batch is None"), ("break", 13, "done")]


def test_an_exception_handler_that_goes_on_may_have_skipped_what_it_covers() -> None:
    source = """\
def train():
    for b in loader:
        try:
            step(b)
            dist.all_reduce(x)
        except ValueError:
            log(b)
"""

    (skip,) = book_of(source).skips_before(FILE, 5)

    assert (skip.kind, skip.line, skip.in_handler) == ("except", 6, True)


def test_a_handler_that_raises_again_skips_nothing() -> None:
    source = """\
def train():
    for b in loader:
        try:
            dist.all_reduce(x)
        except ValueError:
            log(b)
            raise
"""

    assert book_of(source).skips_before(FILE, 4) == []


def test_a_continue_inside_a_handler_is_told_as_such() -> None:
    source = """\
def train():
    for b in loader:
        try:
            step(b)
        except ValueError:
            continue
        dist.all_reduce(x)
"""

    (skip,) = book_of(source).skips_before(FILE, 7)

    assert (skip.kind, skip.line, skip.in_handler) == ("continue", 6, True)


def test_outside_a_loop_only_returns_skip() -> None:
    source = "def evaluate():\n    for s in data:\n        if s: continue\n    if not data:\n        return 0\n    dist.all_reduce(x)\n"

    assert [(skip.kind, skip.line) for skip in book_of(source).skips_before(FILE, 6)] == [("return", 5)]


def test_the_return_of_an_inner_function_skips_nothing_outside() -> None:
    source = "def evaluate():\n    def key(x):\n        return x\n    y = sorted(data, key=key)\n    dist.all_reduce(x)\n"

    assert book_of(source).skips_before(FILE, 5) == []


def test_running_as_a_script_is_no_condition() -> None:
    source = 'if __name__ == "__main__":\n    if rank == 0:\n        dist.barrier()\n'

    assert [guard.text for guard in book_of(source).guards(FILE, 3)] == ["rank == 0"]


def test_finds_the_except_blocks_that_swallow_what_a_line_raises() -> None:
    source = """\
def main():
    try:
        try:
            for batch in loader:
                step(batch)
        except ValueError:
            raise
    except KeyboardInterrupt:
        pass
    dist.barrier()
"""
    book = book_of(source)

    assert [skip.line for skip in book.handlers_for(Frame(FILE, 5, "main"))] == [8]
    assert book.handlers_for(Frame(FILE, 10, "main")) == []
