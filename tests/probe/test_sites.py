"""Places in the user's code: one number for each, written once, and torch's own frames left out."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from rankwise.probe import journal, sites

TORCH = "/venv/lib/python3.11/site-packages/torch/nn.py"
PACKAGE = "/venv/lib/python3.11/site-packages/fabric/fabric.py"
USER = "/home/ada/train.py"
TRAINING = "def train():\n    return [forward() for _ in range(2)]\ndef main(): return train() + [forward()]\n"


@pytest.fixture(autouse=True)
def written(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    lines: list[dict[str, Any]] = []
    monkeypatch.setattr(journal, "write", lambda kind, **facts: lines.append({"k": kind, **facts}))
    sites.forget()
    yield lines
    sites.forget()


def functions(file: str, source: str, **names: Any) -> dict[str, Any]:
    names = {"sys": sys, "sites": sites, **names}
    exec(compile(source, file, "exec"), names)
    return names


def test_a_place_is_written_once_with_the_users_frames_and_not_torchs(written: list[dict[str, Any]]) -> None:
    torch = functions(TORCH, "def forward(): return sites.number_of_caller(sys._getframe())\n")
    user = functions(USER, TRAINING, forward=torch["forward"])

    first, second, other = user["main"]()

    assert first == second != other
    assert [line["i"] for line in written] == [first, other] and {line["k"] for line in written} == {"site"}
    frames = [tuple(frame) for frame in written[0]["frames"] if frame[0] == USER]
    assert frames[-2:] == [(USER, 2, "train"), (USER, 3, "main")] and not any(
        frame[0] == TORCH for line in written for frame in line["frames"]
    )


def test_the_same_code_compiled_again_is_the_same_place(written: list[dict[str, Any]]) -> None:
    numbers = []
    for _ in range(2):
        numbers.append(functions(USER, "def main(): return sites.number_of_caller(sys._getframe())\n")["main"]())

    assert numbers[0] == numbers[1] and len(written) == 1


def test_too_many_pieces_of_code_are_forgotten_and_described_afresh(written: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    main = functions(USER, "def main(): return sites.number_of_caller(sys._getframe())\n")["main"]
    before = main()
    monkeypatch.setattr(sites, "_MAX_CODES", 0)
    monkeypatch.setattr(sites, "forget", lambda forget=sites.forget: (monkeypatch.undo(), forget()))
    other = functions(USER, "\ndef main(): return sites.number_of_caller(sys._getframe())\n")["main"]()

    assert other > before and sites._codes


@pytest.mark.parametrize(
    ("file", "is_users"),
    [(USER, True), ("<stdin>", True), (PACKAGE, False), (TORCH, False), ("<frozen os>", False), (sites.__file__, False)],
)
def test_whose_a_frame_is(file: str, is_users: bool) -> None:
    assert sites.is_users(functions(file, "def f(): return sys._getframe()\n")["f"]()) == is_users


def test_a_library_of_pythons_own_is_not_the_users() -> None:
    import os

    assert not sites.is_users(functions(os.__file__, "def f(): return sys._getframe()\n")["f"]())


@pytest.mark.parametrize(
    ("file", "is_by_user"), [(PACKAGE, True), (TORCH, False), ("/venv/lib/python3.11/site-packages/triton/jit.py", False)]
)
def test_what_torch_does_for_itself_was_not_asked_for_by_the_user(file: str, is_by_user: bool) -> None:
    between = functions(file, "def between(f): return f()\n")["between"]
    user = functions(USER, "def main(f): return between(f)\n", between=between)
    library = functions(PACKAGE, "def ask(): return sites.is_called_by_user(sys._getframe())\n")["ask"]

    assert user["main"](library) == is_by_user
    assert not sites.is_called_by_user(None)


def test_a_whole_stack_leaves_the_probe_out() -> None:
    inner = functions(sites.__file__, "def f(): return sites.stack_of(sys._getframe())\n")["f"]
    stack = functions(USER, "def main(f): return f()\n")["main"](inner)

    assert stack[0] == [USER, 1, "main"] and len(stack) <= 60
