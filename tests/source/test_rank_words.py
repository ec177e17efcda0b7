"""The words for ranks: which names and calls mean a process's rank, and which the same word for something else."""

from __future__ import annotations

import ast

import pytest

from rankwise.source.rank_words import (
    asks_whether_initialized,
    is_other_rank,
    is_question,
    meaning_of,
    meaning_of_call,
    tells_rank,
    zero_only_mark,
)
from rankwise.source.rank_words import meaning_of_variable as of_variable


def expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def call(text: str) -> ast.Call:
    node = expression(text)
    assert isinstance(node, ast.Call)
    return node


@pytest.mark.parametrize(
    ("name", "meaning"),
    [
        ("rank", "rank"),
        ("_RANK", "rank"),
        ("local_rank", "local_rank"),
        ("nprocs", "world_size"),
        ("is_main_process", "main"),
        ("ranking", ""),
        ("n", ""),
    ],
)
def test_names_mean_what_people_call_by_them(name: str, meaning: str) -> None:
    assert meaning_of(name) == meaning


def test_environment_variables_of_other_launchers_are_known() -> None:
    assert [of_variable(name) for name in ("RANK", "SLURM_PROCID", "WORLD_SIZE", "LOCAL_RANK", "HOME")] == [
        "rank",
        "rank",
        "world_size",
        "local_rank",
        "",
    ]


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("dist.get_rank()", "rank"),
        ("dist.get_rank(None)", "rank"),
        ("dist.get_rank(group=dist.group.WORLD)", "rank"),
        ("dist.get_rank(group)", ""),
        ("tp_group.get_rank()", ""),
        ("mesh.get_local_rank()", ""),
        ("dist.get_world_size()", "world_size"),
        ("is_main_process()", "main"),
        ("is_main_process(args)", "main"),
        ("is_main_process(group)", ""),
        ("is_main_process(3)", ""),
        ("is_main_process(a, b)", ""),
        ("size()", ""),
        ("x.item()", ""),
    ],
)
def test_a_rank_within_a_group_is_not_the_jobs(text: str, meaning: str) -> None:
    assert meaning_of_call(call(text)) == meaning


@pytest.mark.parametrize(
    ("text", "asks"),
    [
        ("dist.is_initialized()", True),
        ("torch.distributed.is_available()", True),
        ("is_dist_initialized()", True),
        ("is_initialized()", True),
        ("model.is_initialized()", False),
        ("is_available()", False),
        ("torch.cuda.is_available()", False),
    ],
)
def test_whether_a_job_is_initialized_is_asked_of_torch_distributed(text: str, asks: bool) -> None:
    assert asks_whether_initialized(call(text)) == asks


@pytest.mark.parametrize(
    ("text", "is_so"),
    [("dist.get_rank()", True), ("os.environ.get('X')", True), ("int(x)", True), ("dist.is_available()", True), ("dist.barrier()", False)],
)
def test_nobody_waits_in_a_question(text: str, is_so: bool) -> None:
    assert is_question(call(text)) == is_so


@pytest.mark.parametrize(
    ("text", "tells"),
    [
        ("rank", True),
        ("args.local_rank", True),
        ("group.rank", False),
        ("world_size", False),
        ("rank if x else 0", True),
        ("rank or 0", True),
        ("0 or 1", False),
        ("node_rank * gpus + gpu", True),
        ("a * b + c", False),
        ("a * gpu + b * c", False),
        ("node - gpu", False),
        ("int(rank)", True),
        ("int(n)", False),
        ("get_my_rank()", True),
        ("group.get_my_rank()", False),
        ("os.environ['RANK']", True),
        ("os.environ.get('SLURM_PROCID', 0)", True),
        ("config['rank']", True),
        ("config['size']", False),
    ],
)
def test_what_leaves_no_doubt_that_it_is_the_processs_rank(text: str, tells: bool) -> None:
    assert tells_rank(expression(text)) == tells


def test_a_rank_of_matrices_and_a_mark_for_all_are_told_apart() -> None:
    assert is_other_rank("self", "LoraConfig") and not is_other_rank("self", "config")
    assert zero_only_mark("rank_zero_only") and not zero_only_mark("rank_zero_first") and not zero_only_mark("no_grad")
