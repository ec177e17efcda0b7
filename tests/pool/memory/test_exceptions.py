"""Exceptions made again as they were raised, without a process."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from rankwise.pool.errors import ModelError  # noqa: E402
from rankwise.pool.memory.encoding import unpack  # noqa: E402
from rankwise.pool.memory.exceptions import pickled, raised  # noqa: E402
from tests.pool.models import Carrying, Odd  # noqa: E402


def leave() -> None:
    raise SystemExit("usage: train.py [--lr LR]")


class OfScript(Exception):
    """What it is made of is in a script that ends where the arguments are not its own."""

    def __reduce__(self) -> tuple[Any, ...]:
        return leave, ()


def test_what_ends_the_program_when_it_is_imported_is_an_error_of_the_one_answer() -> None:
    data = pickle.dumps(OfScript())
    with ThreadPoolExecutor() as ours:  # in the main thread it may be of a signal's handler
        value = ours.submit(unpack, ("P", len(data), data), lambda place, *_: place)
        error = ours.submit(raised, (data, "OfScript: no"), "m").result()

        assert "usage: train.py" in str(value.exception()) and isinstance(error, ModelError)


class Doubling(Exception):
    """Pickle makes it again, but not the same."""

    def __init__(self, text: str) -> None:
        super().__init__(f"it was {text}")


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (ValueError("plain", 3), "('plain', 3)"),
        (Odd(1, 2), "1 and 2"),
        (Doubling("so"), "it was so"),
        (Carrying("with baggage"), "with baggage"),
        (ValueError(lambda: 3), "function"),
        (KeyError("k" * 100_000), "kkk … kkk"),
        (FileNotFoundError(2, "No such file", "x.pt"), "'x.pt'"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_exceptions_are_made_again_of_their_own_class(error: BaseException, says: str) -> None:
    data = pickled(error, 20_000)
    again = pickle.loads(data)

    assert type(again) is type(error) and says in str(again) and len(data) <= 20_000


def test_what_of_an_exception_can_travel_does() -> None:
    assert pickle.loads(pickled(Carrying("x"), 20_000)).__dict__ == {"weight": 3}
