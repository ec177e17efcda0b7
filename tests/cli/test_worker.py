"""`rankwise worker`: wrong usage is told before anything is connected, and no password with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rankwise.cli.main import main

GOOD = "amqp://localhost:1//"
WRONG: dict[str, tuple[list[str], str]] = {
    "no scheme": (["--broker", "user:hush@localhost:5672"], "'localhost:5672' is not the address of a broker"),
    "a slash in the password": (["--broker", "amqp://user:hush/hush@localhost:5672//"], "%2F for /"),
    "a slash after digits": (["--broker", "redis://:12/hush@localhost:6379/0"], "%2F for /"),
    "a hash in the password": (["--broker", "redis://:hush#hush@localhost:6379/0"], "%23 for #"),
    "results with a slash": (["--broker", GOOD, "--results", "redis://:hush/hush@localhost:6379/0"], "%2F for /"),
    "results elsewhere": (["--broker", GOOD, "--results", "s3://user:hush@bucket"], "answers cannot be kept at s3://…"),
    "results in a file": (["--broker", GOOD, "--results", "MODELS.toml"], "answers cannot be kept in MODELS.toml: Not a directory"),
    "nothing kept": (["--broker", GOOD, "--keep", "0"], "--keep takes a number from 1 on"),
    "nothing taken": (["--broker", GOOD, "--prefetch", "0"], "--prefetch takes a number from 1 on"),
    "no queue": (["--broker", GOOD, "--queue", ""], "--queue is empty"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_usage_is_a_finding_and_exit_2(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    (tmp_path / "MODELS.toml").write_text('[models.m]\nbuild = "tests.broker.models:nothing"\n')
    monkeypatch.chdir(tmp_path)
    argv, named = WRONG[case]

    assert main(["worker", "MODELS.toml", *argv]) == 2
    told = capsys.readouterr().err
    assert named in " ".join(told.split()) and "hush" not in told and "Traceback" not in told
