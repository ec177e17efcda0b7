"""The small phrases that findings share."""

from __future__ import annotations

import pytest

from rankwise.diagnose.wording import at, group_text, in_short, relative_to, seconds_text, verb
from rankwise.findings import Finding, Place, Wait
from tests.diagnose.jobs import frame_of


def test_a_place_is_told_by_its_file_alone() -> None:
    assert at(frame_of("pkg/train.py:88 main")) == " at train.py:88 main()"
    assert at(frame_of("train.py:88")) == " at train.py:88"
    assert at(None) == ""


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "0 s"),
        (0.4, "0 s"),
        (8.4, "8 s"),
        (59.4, "59 s"),
        (59.6, "1 min"),
        (130, "2 min 10 s"),
        (3600, "1 h 0 min"),
        (3900, "1 h 5 min"),
        (90_000, "25 h 0 min"),
    ],
)
def test_durations_have_at_most_two_units(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text


def test_verbs_agree_with_the_number_of_ranks() -> None:
    assert verb([3], "waits", "wait") == "rank 3 waits"
    assert verb([0, 1, 2], "waits", "wait") == "ranks 0-2 wait"
    assert verb([1, 1], "waits", "wait") == "rank 1 waits"


def test_only_groups_of_the_users_own_are_named() -> None:
    assert (group_text("0"), group_text(""), group_text("3")) == ("", "", " of group 3")


def test_paths_become_relative_to_where_the_job_was_started() -> None:
    finding = Finding(
        "RW201",
        "skipped-collective",
        "error",
        True,
        "x",
        culprits=(Place(0, file="/home/ada/a/train.py"), Place(1, file="/home/ada/ab/x.py"), Place(2)),
        waiting=(Wait(3, file="/home/ada/a/pkg/net.py"), Wait(4, file="<string>")),
    )

    told = relative_to(finding, "/home/ada/a/")

    assert [place.file for place in told.culprits] == ["train.py", "/home/ada/ab/x.py", None]
    assert [wait.file for wait in told.waiting] == ["pkg/net.py", "<string>"]
    assert relative_to(finding, "") == finding


@pytest.mark.parametrize(
    ("whole", "short"),
    [
        (
            "the models differ between ranks (size mismatch): parameter 5.weight has shape [10, 4] float32 on rank 0 and [12, 4] on rank 1",
            "the models differ between ranks (size mismatch): parameter 5.weight has shape [10, 4] float32 on …",
        ),
        (
            "ranks 0, 1 called new_group([0, 2]) at train.py:8 <dictcomp>(), but rank 2 called new_group([0, 1, 2]) at train.py:9",
            "ranks 0, 1 called new_group([0, 2]) at train.py:8 <dictcomp>(), but rank 2 called …",
        ),
        (
            "GLOO_SOCKET_IFNAME=ib7 on ranks 0, 1: there is no such network interface on host node-a (there are eth0, lo)",
            "GLOO_SOCKET_IFNAME=ib7 on ranks 0, 1: there is no such network interface on host node-a",
        ),
    ],
)
def test_a_long_summary_is_not_cut_inside_of_brackets(whole: str, short: str) -> None:
    found = in_short(Finding("RW216", "different-models", "error", True, whole))

    assert (found.summary, found.why) == (short, whole)
