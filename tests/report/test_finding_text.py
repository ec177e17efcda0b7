"""The four-line form, in full and short, wide and narrow, with and without colour."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from rich.cells import cell_len

from rankwise.findings import Finding, Place, Wait
from rankwise.report.finding_text import finding_text, verdict_text
from rankwise.report.verdict import verdict_dict
from tests.report.example_job import skipped_collective

_ANSI = re.compile(r"\x1b\[[0-9;]*m")


def skipped(**changes: object) -> Finding:
    fields: dict[str, object] = {
        "culprits": (Place(3, "node-a", 4203, "eval.py", 41, "evaluate"),),
        "waiting": tuple(Wait(rank, "all_reduce", "default", 4118, "train.py", 88, "train_epoch") for rank in (0, 1, 2, 4, 5, 6, 7)),
        "why": "train.py:80 evaluates only when the local loss improved, so ranks can disagree",
        "next": ("decide on one rank and broadcast the decision", "rankwise explain RW201"),
    }
    summary = "rank 3 never reached the all_reduce that 7 other ranks are waiting in"
    return Finding("RW201", "skipped-collective", "error", True, summary, **{**fields, **changes})  # type: ignore[arg-type]


def test_four_lines() -> None:
    assert finding_text(skipped(), colour=False, width=100) == (
        "RW201  rank 3 never reached the all_reduce that 7 other ranks are waiting in                 certain\n"
        "where  eval.py:41 evaluate()      rank 3 (pid 4203 on node-a)\n"
        "       train.py:88 train_epoch()  ranks 0-2, 4-7: all_reduce #4118\n"
        "why    train.py:80 evaluates only when the local loss improved, so ranks can disagree\n"
        "next   decide on one rank and broadcast the decision · rankwise explain RW201"
    )


def test_narrow_lines_hang_under_their_label_and_steps_stay_whole() -> None:
    assert finding_text(skipped(), colour=False, width=60) == (
        "RW201  rank 3 never reached the all_reduce that 7    certain\n"
        "       other ranks are waiting in\n"
        "where  eval.py:41 evaluate()      rank 3 (pid 4203 on\n"
        "         node-a)\n"
        "       train.py:88 train_epoch()  ranks 0-2, 4-7: all_reduce\n"
        "         #4118\n"
        "why    train.py:80 evaluates only when the local loss\n"
        "       improved, so ranks can disagree\n"
        "next   decide on one rank and broadcast the decision ·\n"
        "       rankwise explain RW201"
    )


@pytest.mark.parametrize("width", [1, 40, 57, 80, 110, 400])
def test_fits_the_width(width: int) -> None:
    for line in finding_text(skipped(), colour=False, width=width).splitlines():
        assert cell_len(line) <= min(max(width, 40), 110)
        assert line == line.rstrip()


def test_colour_adds_only_colour() -> None:
    plain = finding_text(skipped(), colour=False, width=90)
    coloured = finding_text(skipped(), colour=True, width=90)

    assert "\x1b[" in coloured and "\x1b" not in plain
    assert [line.rstrip() for line in _ANSI.sub("", coloured).splitlines()] == plain.splitlines()


def test_no_color_in_the_environment_does_not_change_what_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")

    assert "\x1b[" in finding_text(skipped(), colour=True, width=90)


def test_says_suspected_when_it_is_not_certain() -> None:
    finding = Finding("RW314", "stuck-elsewhere", "warning", False, "rank 1 has not moved for 30 s")

    assert finding_text(finding, colour=False, width=60) == "RW314  rank 1 has not moved for 30 s               suspected"


def test_unknown_place_and_unknown_rank() -> None:
    text = finding_text(skipped(culprits=(Place(2), Place()), waiting=()), colour=False, width=80)

    assert "where  rank 2\n       a rank that could not be identified\n" in text


def test_names_the_group_where_it_is_not_the_default() -> None:
    text = finding_text(skipped(waiting=(Wait(0, "barrier", "tp", 4, "a.py", 1, None),)), colour=False, width=80)

    assert "a.py:1                 rank 0: barrier #4 of group tp" in text


def test_many_places_are_counted() -> None:
    waits = tuple(Wait(rank, "recv", "0", None, "pipe.py", rank + 1, "stage") for rank in range(64))

    text = finding_text(skipped(waiting=waits), colour=False, width=80)

    assert text.count("pipe.py") == 4 and "and 60 more places" in text


def test_hostile_text_cannot_reach_the_terminal() -> None:
    evil = "\x1b]0;owned\x07\x1b[2J[bold red]\u202e\udcff\r\n\x9b31m"
    finding = Finding(
        evil, evil, "error", True, evil, (Place(0, evil, 1, evil, 1, evil),), (Wait(1, evil, evil, 1, evil, 1, evil),), evil, (evil,)
    )

    text = verdict_text(verdict_dict("hung", 70, 2, 1.0, 1.0, [finding]), folder=evil, colour=True, width=80)

    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\udcff]", _ANSI.sub("", text))
    assert "[bold red]" in text, "markup is text here"


def test_verdict_tells_the_root_cause_in_full_and_the_rest_short() -> None:
    verdict, _ = skipped_collective(8)

    assert verdict_text(verdict, folder=Path("rankwise-runs/a"), colour=False, width=110) == (
        "RW201  rank 7 never called all_reduce #243, which 7 other ranks are waiting in                         certain\n"
        "where  train.py:15 train_epoch()  rank 7 (pid 4207 on node-a)\n"
        "       train.py:16 train_epoch()  ranks 0-6: all_reduce #243\n"
        "why    train.py:13 skips the step when the local loss is not finite, so ranks can disagree; the others are in\n"
        "       DDP's gradient all_reduce of the same step\n"
        "next   take the decision on all ranks together: all_reduce or broadcast the flag, then branch ·\n"
        "       rankwise explain RW201\n"
        "\n"
        "RW307  a DataLoader worker of rank 7 has been in one sample for 41 s                                 suspected\n"
        "where  data/loading.py:9 __getitem__()  rank 7 (pid 4900 on node-a)\n"
        "\n"
        "hung · 8 ranks · ran 1 min 34 s · stuck 8.4 s before the verdict · exit code 70\n"
        "run folder rankwise-runs/a"
    )


def test_verdict_of_a_job_that_went_well() -> None:
    verdict = verdict_dict("completed", 0, 1, 12.0, None, [])

    assert verdict_text(verdict, colour=False, width=80) == "completed · 1 rank · ran 12.0 s · exit code 0"


def test_a_long_path_stays_whole() -> None:
    path = "/data/" + "long" * 40 + "/train.py"

    assert f"{path}:7" in finding_text(skipped(culprits=(Place(0, None, None, path, 7, None),)), colour=False, width=60)
