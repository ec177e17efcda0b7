"""The user's code read like a colleague would: who can reach a line, which loop is around it, what may have skipped it."""

from __future__ import annotations

import textwrap
import time

import pytest

from rankwise.diagnose.source import SourceBook, common_frames
from rankwise.evidence.records import Frame
from tests.diagnose.jobs import (
    stack_of,
)

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


# -- conditions on the rank ---------------------------------------------------------------------------------------------------

CONDITIONS = {
    "rank == 0": [0],
    "0 == rank": [0],
    "rank != 0": [1, 2, 3],
    "not rank": [0],
    "rank": [1, 2, 3],
    "rank > 0": [1, 2, 3],
    "rank < 2": [0, 1],
    "0 < rank < 3": [1, 2],
    "rank is 0": [0],
    "rank in (0, 1)": [0, 1],
    "rank in [3]": [3],
    "rank in {1, 2}": [1, 2],
    "rank not in (0,)": [1, 2, 3],
    "rank in range(2)": [0, 1],
    "rank % 2": [1, 3],
    "rank % 2 == 0": [0, 2],
    "rank // 2 == 1": [2, 3],
    "rank == world_size - 1": [3],
    "rank == dist.get_world_size() - 1": [3],
    "rank < world_size // 2": [0, 1],
    "dist.get_rank() == 0": [0],
    "torch.distributed.get_rank() != 0": [1, 2, 3],
    "args.rank == 0": [0],
    "self.rank == 0": [0],
    "self._rank == 0": [0],
    "cfg.global_rank == 2": [2],
    "fabric.global_rank == 0": [0],
    "trainer.is_global_zero": [0],
    "accelerator.is_main_process": [0],
    "not accelerator.is_main_process": [1, 2, 3],
    "accelerator.process_index == 1": [1],
    "is_main": [0],
    "not is_main": [1, 2, 3],
    "is_main_process()": [0],
    "utils.is_main_process()": [0],
    "is_master()": [0],
    "int(os.environ['RANK']) == 0": [0],
    "int(os.environ['RANK']) % 2": [1, 3],
    "int(os.environ.get('RANK', 0)) == 0": [0],
    "int(os.getenv('RANK', '0')) == 0": [0],
    "os.environ['RANK'] == '0'": [0],
    "os.environ.get('RANK') in ('1', '3')": [1, 3],
    "int(os.environ['RANK']) < int(os.environ['WORLD_SIZE']) - 1": [0, 1, 2],
    "rank == 0 and step % 100 == 0": [0],
    "step % 100 == 0 and rank == 0": [0],
    "rank == 0 or rank == 3": [0, 3],
    "not (rank == 0)": [1, 2, 3],
    "not dist.is_initialized() or dist.get_rank() == 0": [0],
    "dist.is_initialized() and dist.get_rank() == 0": [0],
    "args.local_rank in [-1, 0]": [0],
    "args.local_rank in (-1, 0)": [0],
    "(r := dist.get_rank()) == 0": [0],
    "bool(rank)": [1, 2, 3],
    "min(rank, 1) == 0": ALL,  # not understood: all may be there
    "loss < best": ALL,
    "rank == 0 or loss < best": ALL,
    "dist.get_rank(group) == 0": ALL,  # a rank within another group is another number
    "dist.get_rank(group=pair) == 0": ALL,
    "True": ALL,
    "rank == 'zero'": ALL,
    "rank / 0": ALL,
    "rank < 'a'": ALL,
}


@pytest.mark.filterwarnings("ignore::SyntaxWarning")
@pytest.mark.parametrize("condition", CONDITIONS)
def test_knows_which_ranks_a_condition_lets_through(condition: str) -> None:
    source = f"def main(args):\n    if {condition}:\n        dist.barrier()\n"

    assert reaching(source) == CONDITIONS[condition]


@pytest.mark.filterwarnings("ignore::SyntaxWarning")
@pytest.mark.parametrize("condition", [c for c, ranks in CONDITIONS.items() if ranks != ALL])
def test_the_else_branch_is_for_the_others(condition: str) -> None:
    source = f"def main(args):\n    if {condition}:\n        pass\n    else:\n        dist.barrier()\n"
    is_open = "step" in condition  # what else the condition asks may send anybody there

    assert reaching(source) == [rank for rank in ALL if is_open or rank not in CONDITIONS[condition]]


FORMS = {
    "if on one line": ("def main():\n    if rank == 0: dist.barrier()\n", [0]),
    "conditional expression": ("def main():\n    dist.barrier() if rank == 0 else None\n", [0]),
    "and": ("def main():\n    rank == 0 and dist.barrier()\n", [0]),
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
    "match": ("def main():\n    match rank:\n        case 0:\n            dist.barrier()\n", [0]),
    "module level": ("if rank == 0:\n    dist.barrier()\n", [0]),
    "over several lines": (
        "def main():\n    if (\n        rank\n        == 0\n    ):\n        foo(\n            dist.barrier(),\n        )\n",
        [0],
    ),
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


VARIABLES = {
    "a variable": "rank = dist.get_rank()\ndef main():\n    lead = rank == 0\n    if lead:\n        dist.barrier()\n",
    "a global": "chief = dist.get_rank() == 0\ndef main():\n    if chief:\n        dist.barrier()\n",
    "an annotated variable": "def main():\n    chief: bool = dist.get_rank() == 0\n    if chief:\n        dist.barrier()\n",
    "two at once": "def main():\n    r, w = dist.get_rank(), dist.get_world_size()\n    if r == 0:\n        dist.barrier()\n",
    "a conditional": "def main():\n    r = dist.get_rank() if dist.is_initialized() else 0\n    if r == 0:\n        dist.barrier()\n",
    "from the environment": 'def main():\n    me = int(os.environ["RANK"])\n    if me == 0:\n        dist.barrier()\n',
    "an attribute": """\
class T:
    def __init__(self, rank):
        self.chief = rank == 0
    def main(self):
        if self.chief:
            dist.barrier()
""",
    "a property": """\
class T:
    @property
    def chief(self):
        return self.rank == 0
    def main(self):
        if self.chief:
            dist.barrier()
""",
    "a helper": "def chief():\n    return dist.get_rank() == 0\ndef main():\n    if chief():\n        dist.barrier()\n",
    "a careful helper": """\
def chief():
    return not dist.is_initialized() or dist.get_rank() == 0
def main():
    if chief():
        dist.barrier()
""",
    "a helper of a helper": """\
def me():
    return int(os.environ['RANK'])
def chief():
    return me() == 0
def main():
    if chief():
        dist.barrier()
""",
    "a helper with a parameter": "def chief(r):\n    return r == 0\ndef main(rank):\n    if chief(rank):\n        dist.barrier()\n",
}


@pytest.mark.parametrize("form", VARIABLES)
def test_follows_a_condition_to_where_it_comes_from(form: str) -> None:
    assert reaching(VARIABLES[form]) == [0]


def test_follows_a_helper_into_another_file() -> None:
    source = "from tools import chief\ndef main():\n    if chief():\n        dist.barrier()\n"

    assert reaching(source, tools="import torch.distributed as dist\ndef chief():\n    return dist.get_rank() == 0\n") == [0]


def test_the_last_rank_is_known_too() -> None:
    source = """\
        class Stage:
            def __init__(self, rank, world_size):
                self.is_last = rank == world_size - 1

            def main(self):
                if self.is_last:
                    dist.barrier()
        """

    assert reaching(source) == [3]
    assert reaching(source, world_size=8) == [7]


MISLEADING = {
    "a loop variable called rank": """\
def main():
    for rank in range(4):
        if rank == 0:
            continue
        dist.barrier()
""",
    "another thing called rank": "def main():\n    rank = scores.argsort().index(me)\n    if rank == 0:\n        dist.barrier()\n",
    "a rank in another group": "def main():\n    rank = dist.get_rank(pair)\n    if rank == 0:\n        dist.barrier()\n",
    "a helper's parameter is what it is given": """\
def zero(rank):
    return rank == 0
def main():
    if zero(step):
        dist.barrier()
""",
    "a helper with several answers": """\
def ready():
    if x:
        return True
    return dist.get_rank() == 0
def main():
    if ready():
        dist.barrier()
""",
    "an attribute set in two places": """\
class T:
    def a(self):
        self.flag = self.rank == 0
    def b(self):
        self.flag = True
    def main(self):
        if self.flag:
            dist.barrier()
""",
    "a value of the job": "def main():\n    if world_size > 1:\n        dist.barrier()\n",
}


@pytest.mark.parametrize("form", MISLEADING)
def test_does_not_take_other_conditions_for_ones_on_the_rank(form: str) -> None:
    assert reaching(MISLEADING[form]) == ALL


@pytest.mark.parametrize(
    "decorator", ["@rank_zero_only", "@utilities.rank_zero_only", "@master_only", "@on_main_process", "@accelerator.on_main_process"]
)
def test_knows_decorators_for_rank_zero(decorator: str) -> None:
    source = f"{decorator}\ndef save(model):\n    dist.barrier()\n"

    assert reaching(source, function="save") == [0]


def test_knows_the_wrapper_of_a_decorator_on_the_stack() -> None:
    book = book_of("def save():\n    dist.barrier()\n")
    stack = (Frame(FILE, 2, "save"), Frame("/x/site-packages/lightning/rank_zero.py", 40, "rank_zero_only.wrapped_fn"))

    assert book.ranks_reaching(stack, ALL, WORLD)[0] == {0}


def test_every_frame_of_the_stack_counts_and_the_innermost_condition_is_told() -> None:
    book = book_of("def save():\n    if rank < 2:\n        dist.barrier()\n\ndef main():\n    if rank % 2 == 0:\n        save()\n")

    ranks, guard = book.ranks_reaching((Frame(FILE, 3, "save"), Frame(FILE, 7, "main")), ALL, WORLD)

    assert ranks == {0}
    assert (guard.text, guard.line, guard.wanted) == ("rank < 2", 2, True)


def test_a_condition_that_lets_nobody_through_was_misunderstood() -> None:
    assert reaching("def main():\n    if rank == 99:\n        dist.barrier()\n") == ALL


def test_guards_are_told_from_the_outside_in() -> None:
    book = book_of("def main():\n    if a:\n        if b: return\n        while c:\n            dist.barrier()\n")

    guards = book.guards(FILE, 5)

    assert [(guard.text, guard.wanted) for guard in guards] == [("a", True), ("b", False), ("c", True)]


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


def test_finds_the_loops_around_a_line() -> None:
    book = book_of(LOOP)

    assert book.loops_around(FILE, line_of(book, "loss.backward()")) == [(5, 14), (4, 15)]
    assert book.loop_around(FILE, line_of(book)) == (4, 15)
    assert book.loop_around(FILE, line_of(book, "finish()")) is None
    assert book.loop_around(FILE, line_of(book, "import torch")) is None


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


def test_finds_where_an_argument_got_its_value() -> None:
    source = """\
def main(rank):
    method = "env://"
    if rank:
        method = f"file:///tmp/{rank}"
    dist.init_process_group(
        "gloo",
        init_method=method,
    )
"""
    book = book_of(source)

    assert book.argument_name(FILE, 5, "init_process_group", "init_method", 1) == "method"
    assert book.assignment_of(FILE, 5, "method") == 4
    assert book_of('dist.init_process_group("gloo", method)\n').argument_name(FILE, 1, "init_process_group", "init_method", 1) == "method"
    assert book_of('dist.init_process_group("gloo", "env://")\n').argument_name(FILE, 1, "init_process_group", "init_method", 1) == ""


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
    book.loops_around(FILE, line)
    book.branch_taken_by(frame, ALL, WORLD)
    book.has_twin_call(frame, "barrier", [1], [0], WORLD)
    book.line_setting(FILE, "RANK")
    book.attribute_lines("weight")
    book.argument_name(FILE, line, "barrier", "group", 0)
    book.assignment_of(FILE, line, "rank")

    assert ranks <= set(ALL) and ranks
    assert time.process_time() - started < 5


def test_files_and_lines_that_are_not_there_tell_nothing() -> None:
    book = book_of("dist.barrier()\n")

    assert book.ranks_reaching((Frame("/gone.py", 7, "main"), Frame(FILE, 999, "main"), Frame(FILE, 0, "main")), ALL, WORLD) == (
        set(ALL),
        None,
    )
    assert book.line_text("/gone.py", 7) == book.line_text(FILE, 999) == book.line_text(FILE, -1) == ""
    assert book.guards("/gone.py", 1) == book.loops_around("/gone.py", 1) == book.skips_before("/gone.py", 1) == []
    assert book.line_setting("/gone.py", "RANK") is None
