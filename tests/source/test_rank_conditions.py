"""Conditions on the rank, in the many forms people write them: which ranks each lets through."""

from __future__ import annotations

import pytest

from rankwise.evidence.records import Frame
from tests.source.sources import ALL, FILE, WORLD, book_of, reaching

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


VARIABLES = {
    "an object that only one rank has": """\
def main(model, writer=None):
    if writer is not None:
        dist.barrier()
def run(args):
    if dist.get_rank() == 0 and args.log_dir is not None:
        writer = SummaryWriter(args.log_dir)
    else:
        writer = None
    main(model, writer=writer)
""",
    "an object given to a class": """\
class Trainer:
    def __init__(self, model, tracker):
        self.tracker = tracker
    def main(self):
        if self.tracker:
            dist.barrier()
def run():
    tracker = Tracker("run") if dist.get_rank() == 0 else None
    Trainer(model, tracker).main()
""",
    "a function of a module of one's own that is called dist": """\
import distributed as dist
def is_primary():
    return get_rank() == 0
def get_rank():
    if not torch.distributed.is_available():
        return 0
    return torch.distributed.get_rank()
def main():
    if dist.is_primary():
        dist.barrier()
""",
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


@pytest.mark.parametrize(
    "condition", ["local_rank == 0", "args.local_rank == 0", "int(os.environ['LOCAL_RANK']) == 0", "accelerator.is_local_main_process"]
)
def test_on_several_hosts_the_local_rank_is_another_number(condition: str) -> None:
    book = book_of(f"def main(args, local_rank):\n    if {condition}:\n        dist.barrier()\n")
    book.local_ranks = {rank: rank % 2 for rank in ALL}

    assert book.ranks_reaching((Frame(FILE, 3, "main"),), ALL, WORLD)[0] == {0, 2}


def test_a_local_rank_that_is_not_known_decides_nothing() -> None:
    book = book_of("def main(local_rank):\n    if local_rank == 0:\n        dist.barrier()\n")
    book.local_ranks = {}

    assert book.ranks_reaching((Frame(FILE, 3, "main"),), ALL, WORLD)[0] == set(ALL)
