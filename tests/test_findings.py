"""The finding: how places and ranks are worded, and its way to JSON and back."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwise.findings import Finding, Place, Wait, ranks_text, signal_name, where

WHOLE = Finding(
    "RW201",
    "skipped-collective",
    "error",
    True,
    "rank 1 never called all_reduce #13",
    culprits=(Place(1, "node-a", 4242, "train.py", 88, "train_epoch"), Place()),
    waiting=(Wait(0, "all_reduce", "default", 13, "train.py", 91, "train_epoch"), Wait()),
    why="because",
    next=("do this", "do that"),
    deadlock=True,
)
LEAST = {"code": "RW900", "name": "unknown-cause", "severity": "error", "certain": False, "summary": "nothing known"}


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([], "no rank"),
        ([3], "rank 3"),
        ([3, 3], "rank 3"),
        ([0, 1], "ranks 0, 1"),
        ([0, 1, 2], "ranks 0-2"),
        ([2, 0, 1, 5], "ranks 0-2, 5"),
        ([0, 2, 4], "ranks 0, 2, 4"),
        ([0, 1, 3, 4, 5, 9, 10], "ranks 0, 1, 3-5, 9, 10"),
        (set(range(4096)) - {7}, "ranks 0-6, 8-4095"),
    ],
)
def test_ranks_are_named_shortly_at_any_world_size(ranks, text: str) -> None:
    assert ranks_text(ranks) == text


@pytest.mark.parametrize(
    ("place", "text"),
    [
        (("train.py", 88, "train_epoch"), "train.py:88 train_epoch()"),
        (("train.py", 88, "<module>"), "train.py:88"),
        (("train.py", 88, None), "train.py:88"),
        (("train.py", None, "main"), "train.py main()"),
        (("train.py", 0, ""), "train.py"),
        ((None, 88, "main"), "unknown place"),
        (("", None, None), "unknown place"),
    ],
)
def test_places_are_named_as_the_user_would_open_them(place, text: str) -> None:
    file, line, function = place

    assert where(*place) == text
    assert str(Place(file=file, line=line, function=function)) == str(Wait(file=file, line=line, function=function)) == text


def test_comes_back_from_json_unchanged() -> None:
    assert Finding.from_dict(json.loads(json.dumps(WHOLE.to_dict()))) == WHOLE


def test_keys_it_does_not_know_are_ignored() -> None:
    data = WHOLE.to_dict()
    data["mood"] = "gloomy"
    data["culprits"][0]["shoe_size"] = 44

    assert Finding.from_dict(data) == WHOLE


def test_what_is_missing_takes_its_default() -> None:
    found = Finding.from_dict(LEAST)

    assert (found.culprits, found.next, found.deadlock) == ((), (), False)


@pytest.mark.parametrize(
    "broken",
    [
        {"severity": "fatal"},
        {"culprits": ["rank 1"]},
        {"waiting": [None]},
        {"certain": "yes"},
    ],
)
def test_what_is_wrong_is_said(broken: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        Finding.from_dict({**LEAST, **broken})


def test_another_severity_changes_nothing_else() -> None:
    assert WHOLE.with_severity("warning").to_dict() == {**WHOLE.to_dict(), "severity": "warning"}


_TEXTS = st.text(max_size=20)
_NUMBERS = st.none() | st.integers(-(1 << 63), (1 << 63) - 1)
_PLACES = st.builds(Place, _NUMBERS, st.none() | _TEXTS, _NUMBERS, st.none() | _TEXTS, _NUMBERS, st.none() | _TEXTS)


@given(
    st.builds(
        Finding,
        _TEXTS,
        _TEXTS,
        st.sampled_from(["error", "warning", "info"]),
        st.booleans(),
        _TEXTS,
        culprits=st.lists(_PLACES, max_size=2).map(tuple),
        why=_TEXTS,
        next=st.lists(_TEXTS, max_size=2).map(tuple),
        deadlock=st.booleans(),
    )
)
def test_any_finding_comes_back_from_json_unchanged(finding: Finding) -> None:
    assert Finding.from_dict(json.loads(json.dumps(finding.to_dict()))) == finding


@given(st.sets(st.integers(0, 60), min_size=1))
def test_no_rank_is_lost_between_the_dashes(ranks: set[int]) -> None:
    text = ranks_text(ranks).split(" ", 1)[1]

    spans = [part.split("-") for part in text.split(", ")]

    assert {n for span in spans for n in range(int(span[0]), int(span[-1]) + 1)} == ranks


@pytest.mark.parametrize(("number", "name"), [(9, "SIGKILL"), (15, "SIGTERM"), (40, "signal 40"), (0, "signal 0")])
def test_signals_without_a_name_are_numbered(number: int, name: str) -> None:
    assert signal_name(number) == name
