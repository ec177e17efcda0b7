"""`rankwise explain`: causes, checks, and the verdict of an earlier run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rankwise.causes import all_causes
from rankwise.cli.explain import main
from rankwise.diagnose import diagnose
from rankwise.errors import UnreadableInput, UsageError
from rankwise.evidence.run_folder import save_evidence
from tests.report.example_job import skipped_collective


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    verdict, job = skipped_collective()
    save_evidence(tmp_path / "evidence", job)
    (tmp_path / "verdict.json").write_text(json.dumps({**verdict, "findings": []}))
    return tmp_path


def said(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(list(argv)) == 0
    return capsys.readouterr().out


def test_all_causes_are_listed_and_each_has_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    lines = said(capsys, "--list").splitlines()

    assert len(lines) == len(all_causes()) and all(line.startswith("RW") for line in lines)
    assert said(capsys, "rw201") == said(capsys, "RW201")
    assert said(capsys, "RW201").startswith("RW201 ")


def test_a_check_has_a_page_unless_a_folder_has_its_name(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "memory" in said(capsys, "memory").lower()

    (tmp_path / "memory").mkdir()
    with pytest.raises(UnreadableInput, match="memory holds no evidence of a run"):
        main(["memory"])


@pytest.mark.parametrize(("what", "why"), [("RW2999", "no cause RW2999"), ("memroy", "neither a code, nor a check, nor a run folder")])
def test_what_cannot_be_explained_is_said_with_what_is_near(what: str, why: str) -> None:
    with pytest.raises(UsageError, match=why) as wrong:
        main([what])

    assert wrong.value.finding.next
    if what.startswith("RW"):
        assert "RW201" in wrong.value.finding.why


def test_a_run_is_judged_again_and_what_only_the_moment_knew_is_kept(capsys: pytest.CaptureFixture[str], run_folder: Path) -> None:
    recorded: dict[str, Any] = json.loads((run_folder / "verdict.json").read_text())

    again = json.loads(said(capsys, str(run_folder), "--json"))

    assert again["findings"] == [finding.to_dict() for finding in diagnose(skipped_collective()[1])] != []
    assert (again["outcome"], again["exit_code"]) == (recorded["outcome"], recorded["exit_code"])
    assert again["findings"][0]["code"] in said(capsys, str(run_folder))


@pytest.mark.parametrize("verdict", [None, "{", "[]", '{"outcome": "melted", "exit_code": "7"}', "[" * 100_000])
def test_a_verdict_that_is_lost_or_damaged_costs_only_what_it_alone_knew(
    capsys: pytest.CaptureFixture[str], run_folder: Path, verdict: str | None
) -> None:
    (run_folder / "verdict.json").unlink()
    if verdict is not None:
        (run_folder / "verdict.json").write_text(verdict)

    again = json.loads(said(capsys, str(run_folder), "--json"))

    assert (again["outcome"], again["exit_code"]) == ("running", None) and again["findings"]


def test_evidence_that_nobody_foresaw_is_no_traceback(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, job = skipped_collective()
    broken = replace(job, ranks={rank: replace(e, calls=None) for rank, e in job.ranks.items()})  # type: ignore[arg-type]
    monkeypatch.setattr("rankwise.evidence.run_folder.load_evidence", lambda folder: broken)

    with pytest.raises(UnreadableInput, match="cannot be understood"):
        main([str(run_folder)])
