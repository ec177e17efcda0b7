"""The command line of `rankwise run`, told apart: ours, torchrun's, the script's."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwise.errors import UsageError
from rankwise.launch.plan import OWN_FLAGS, OWN_OPTIONS, TORCHRUN_FLAGS, TORCHRUN_VALUES, RunPlan, plan_run

TORCHRUN = (sys.executable, "-m", "torch.distributed.run")


@pytest.fixture(autouse=True)
def in_a_folder_with_a_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)


def after_torchrun(plan: RunPlan) -> list[str]:
    assert plan.style == "torchrun"
    assert plan.command[:3] == TORCHRUN
    words = list(plan.command[3:])
    assert words[words.index("--") + 1] == plan.script  # so that torchrun leaves alone what comes after it
    words.remove("--")
    return words


def test_ours_are_taken_out_and_the_rest_is_passed_on_unchanged() -> None:
    plan = plan_run(
        [
            "--standalone",
            "--out",
            "o",
            "--nproc-per-node=2",
            "--stall-after=4.5",
            "--on-stall",
            "report",
            "train.py",
            "--out",
            "x",
            "--lr",
            "1",
        ]
    )

    assert after_torchrun(plan) == ["--standalone", "--nproc-per-node=2", "train.py", "--out", "x", "--lr", "1"]
    assert (plan.script, plan.out, plan.stall_after_s, plan.on_stall) == ("train.py", Path("o"), 4.5, "report")


def test_nothing_given_is_decided_later() -> None:
    plan = plan_run(["train.py"])

    assert after_torchrun(plan) == ["train.py"]
    assert (plan.out, plan.stall_after_s, plan.on_stall, plan.num_nodes, plan.may_restart) == (None, None, "abort", 1, False)


@pytest.mark.parametrize(
    "argv",
    [
        ["--nproc_per_node", "2", "--max_restarts", "3", "train.py"],
        ["--nproc-per-node", "2", "--max-restarts=3", "train.py", "--", "-x"],
        ["-m", "package.train", "train.py"],
        ["--module", "--nnodes=1", "package.train"],
        ["--no-python", "bash", "-c", "echo $RANK"],
        ["--no_python", "--standalone", "./run.sh"],
        ["--tee", "3", "--log-dir", "logs", "-r", "0:1,1:3", "train.py"],
        ["-t3", "train.py"],
        ["--local-ranks-filter", "0", "train.py", "--stall-after", "never"],
        ["train.py", "--help"],
        ["train.py", "-m", "--no-python"],
    ],
)
def test_everything_of_torchruns_is_passed_on_word_for_word(argv: list[str]) -> None:
    assert after_torchrun(plan_run(argv)) == argv


def test_a_rendezvous_is_understood() -> None:
    plan = plan_run(
        ["--nnodes", "2:4", "--rdzv-backend=c10d", "--rdzv-endpoint", "node-a:29400", "--rdzv_id", "7", "--max-restarts", "3", "train.py"]
    )
    static = plan_run(["--nnodes=2", "--master_addr", "10.0.0.1", "--master-port=1234", "--node-rank", "1", "train.py"])

    assert (plan.num_nodes, plan.endpoint, plan.job_id, plan.may_restart) == (4, "node-a:29400", "7", True)
    assert (static.num_nodes, static.endpoint) == (2, "10.0.0.1:1234")
    assert plan_run(["--standalone", "train.py"]).endpoint == ""


def test_a_command_is_left_as_it_is() -> None:
    command = ["mpirun", "-n", "4", "--out", "x", "python", "train.py", "--", "-h"]
    plan = plan_run(["--out=o", "--", *command])

    assert plan.command == tuple(command)
    assert (plan.style, plan.script, plan.out) == ("command", "train.py", Path("o"))
    assert plan_run(["--", "./a.out"]).script == "./a.out"


def test_the_last_of_two_counts() -> None:
    assert plan_run(["--stall-after", "5", "--stall-after", "7", "train.py"]).stall_after_s == 7


WRONG = {
    "nothing": [],
    "no script": ["--standalone", "--nproc-per-node", "2"],
    "missing script": ["--standalone", "trian.py"],
    "a folder": ["."],
    "no command": ["--"],
    "torchrun's options before a command": ["--nproc-per-node", "2", "--", "python", "train.py"],
    "no value": ["--out"],
    "no value for torchrun": ["--nproc-per-node"],
    "empty out": ["--out=", "train.py"],
    "stall: word": ["--stall-after", "abc", "train.py"],
    "stall: zero": ["--stall-after", "0", "train.py"],
    "stall: below": ["--stall-after=-3", "train.py"],
    "stall: nan": ["--stall-after", "nan", "train.py"],
    "stall: inf": ["--stall-after", "inf", "train.py"],
    "stall: empty": ["--stall-after=", "train.py"],
    "on-stall": ["--on-stall", "explode", "train.py"],
}


@pytest.mark.parametrize("argv", WRONG.values(), ids=WRONG)
def test_wrong_usage_is_said_with_a_way_out(argv: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        plan_run(argv)

    finding = caught.value.finding
    assert finding.code == "RW001"
    assert finding.summary
    assert finding.next


words = st.sampled_from(
    [
        *OWN_OPTIONS,
        *OWN_FLAGS,
        *TORCHRUN_VALUES,
        *TORCHRUN_FLAGS,
        "-m",
        "-r",
        "-t",
        "--",
        "-",
        "train.py",
        "2",
        "--x",
        "--out=a",
        "--nnodes=1:2",
        "",
        "=",
    ]
)


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(argv=st.lists(words | st.text(max_size=4), max_size=8))
def test_any_words_are_a_plan_or_wrong_usage(argv: list[str]) -> None:
    try:
        plan = plan_run(argv)
    except UsageError:
        return
    if plan.style == "torchrun":  # no word is lost or made up but our own options
        assert [word for word in argv if word in after_torchrun(plan)]
        assert set(after_torchrun(plan)) <= set(argv)
    else:
        assert list(plan.command) == argv[argv.index("--") + 1 :] or "--" in argv


def test_torchruns_options_may_be_cut_short() -> None:
    plan = plan_run(["--nnod", "2", "--rdzv-end", "node-a:29400", "--stand", "train.py"])

    assert after_torchrun(plan) == ["--nnod", "2", "--rdzv-end", "node-a:29400", "--stand", "train.py"]
    assert plan.num_nodes == 2


def test_an_option_cut_too_short_is_torchruns_to_refuse() -> None:
    assert after_torchrun(plan_run(["--r", "train.py"])) == ["--r", "train.py"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], False),
        (["--max-restarts", "0"], False),
        (["--max-restarts=3"], True),
        (["--nnodes", "2"], False),
        (["--nnodes", "1:4"], True),
        (["--nnodes", "2:2"], False),
    ],
    ids=str,
)
def test_whether_ranks_may_be_restarted(options: list[str], expected: bool) -> None:
    assert plan_run([*options, "train.py"]).may_restart == expected


def test_torchruns_variables_count_as_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PET_MAX_RESTARTS", "2")
    monkeypatch.setenv("PET_NNODES", "3")

    plan = plan_run(["train.py"])
    assert (plan.num_nodes, plan.may_restart) == (3, True)
    assert plan_run(["--nnodes", "1", "train.py"]).num_nodes == 1
