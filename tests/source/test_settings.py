"""Lines that set an environment variable, in Python and in shell."""

from __future__ import annotations

import ast

import pytest

from rankwise.source.settings import find_python_setting, find_shell_setting


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        ('os.environ["RANK"] = "0"', True),
        ('os.environ.setdefault("RANK", "0")', True),
        ('os.putenv("RANK", "0")', True),
        ('env = {"A": "1", "RANK": "0"}', True),
        ("env = dict(os.environ, RANK='0')", True),
        ('x = os.environ["RANK"]', False),
        ('os.environ.get("RANK", "0")', False),
        ('os.environ["LOCAL_RANK"] = "0"', False),
        ('"RANK" == x', False),
    ],
)
def test_python_that_sets_a_variable(text: str, is_found: bool) -> None:
    assert find_python_setting(ast.parse(f"\n\n{text}"), "RANK") == (3 if is_found else None)


def test_in_a_dictionary_over_several_lines_it_is_the_keys_own() -> None:
    assert find_python_setting(ast.parse('env = {\n    "A": "1",\n    "RANK": "0",\n}'), "RANK") == 3


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        ("export RANK=0", True),
        ("RANK=0 python train.py", True),
        ("  env RANK=$SLURM_PROCID python train.py", True),
        ("# RANK=0", False),
        ("python train.py # RANK=0", False),
        ("LOCAL_RANK=0", False),
        ("python train.py --RANK=0", False),
        ("[[ $RANK==0 ]]", False),
        ("[[ ${RANK==0} ]]", False),
        ("[[ RANK==0 ]]", False),
        ("echo RANKS=0", False),
    ],
)
def test_shell_that_sets_a_variable(text: str, is_found: bool) -> None:
    assert find_shell_setting(["#!/bin/sh", text], "RANK") == (2 if is_found else None)
