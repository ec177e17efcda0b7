"""What goes wrong is told as a finding, whole, wherever its text is seen: code, reason and next step."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.families import mostly_live

torch = pytest.importorskip("torch")

from rankwise.errors import RankwiseError, UsageError  # noqa: E402
from rankwise.findings import Finding  # noqa: E402
from rankwise.pool import Model, Pool  # noqa: E402
from rankwise.pool.errors import (  # noqa: E402
    Death,
    ModelError,
    OomWatch,
    build_died,
    build_failed,
    deadline_exceeded,
    lane_full,
    missing_main_guard,
    no_worker,
    pool_closed,
    pool_full,
    quarantined,
    task_hung,
    too_large,
)

DEATH = Death(3, stack="File x.py")
ERRORS: list[RankwiseError] = [
    UsageError("this is wrong", why="so it is", next=("do that",)),
    pool_full("m", 3, "tasks"),
    pool_closed(),
    deadline_exceeded("m", 0.5, True),
    quarantined("m", "float32[2]", 2, DEATH),
    task_hung("m", "float32[2]", 3, DEATH),
    build_failed("m", "ValueError: no", 1, ValueError("no")),
    build_died("m", 1, DEATH),
    too_large("m", 10, "cpu", 5),
    no_worker("torch is missing"),
    missing_main_guard(),
    lane_full("x", 1, 2, 3, 4),
]


@pytest.fixture(scope="module", params=[0, 1])
def pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    models = {"echo": Model("tests.pool.models:echo"), "rows": Model("tests.pool.models:echo", max_batch=4)}
    with Pool({**models, "nests": Model("tests.pool.models:nests")}, workers=request.param) as pool:
        yield pool


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: f"{error.finding.code}, {error.finding.name}")
def test_the_text_of_an_error_is_the_whole_finding(error: RankwiseError) -> None:
    finding, text = error.finding, str(error)

    assert text.splitlines()[0].startswith(f"{finding.code} ") and finding.summary in text
    assert all(line.strip() in text for line in finding.why.splitlines()) and all(f"next   {step}" in text for step in finding.next)
    assert not getattr(error, "__notes__", None)  # which a traceback would show once more


def test_a_build_that_took_too_long_names_the_limit() -> None:
    assert "limit_s=600" in str(build_died("m", 1, Death(-9, hung_s=300.0))) and "limit_s" not in str(build_died("m", 1, DEATH))


def nested(depth: int, kind: str) -> Any:
    value: Any = 1.0
    for _ in range(depth):
        value = {"list": [value], "tuple": (value,), "dict": {"a": value}}[kind]
    return value


def own() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.parametrize("model", ["echo", "rows"])
@pytest.mark.parametrize("kind", ["list", "tuple", "dict"])
def test_what_is_nested_too_deep_is_told_and_what_is_not_arrives(pool: Pool, model: str, kind: str) -> None:
    assert pool.submit(model, nested(200, kind)).result(60) == nested(200, kind)
    for depth in (300, 1990, 5000, 100_000):
        with pytest.raises(UsageError, match="nested more than 250 deep"):
            pool.submit(model, nested(depth, kind))
    with pytest.raises(UsageError, match="nested more than 250 deep"):
        pool.submit(model, own())
    with pytest.raises(UsageError, match="nested more than 250 deep"):
        list(pool.map(model, [1.0, nested(5000, kind)]))
    assert pool.submit(model, 1.0).result(60) == 1.0


def test_an_output_that_is_nested_too_deep_is_told(pool: Pool) -> None:
    error = pool.submit("nests", 5000).exception(60)

    assert isinstance(error, ModelError) and "nested more than 250 deep" in str(error)
    assert pool.submit("nests", 3).result(60) == [[[1.0]]]


SCRIPT = """
import rankwise, torch
def build():
    return lambda x: x * 2
if __name__ == "__main__":
    with rankwise.Pool({"m": rankwise.Model(build)}, workers=1) as pool:
        print(pool.submit("m", torch.ones(2)).result(60).tolist())
"""
WAYS = {"piped": "cat {} | {}", "a dash": "cat {} | {} -", "its file": "cat {} | {} /dev/stdin", "another pipe": "{1} <(cat {0})"}


@pytest.mark.live
@pytest.mark.parametrize("way", mostly_live(WAYS))
@pytest.mark.parametrize("has_cloudpickle", mostly_live([True, False]))
def test_a_script_that_no_worker_can_run_again(tmp_path: Path, way: str, has_cloudpickle: bool) -> None:
    """Its functions travel as those of a notebook do, or it is told what to do."""
    hidden = "" if has_cloudpickle else "import sys; sys.modules['cloudpickle'] = None\n"
    (tmp_path / "script.py").write_text(hidden + SCRIPT)
    command = WAYS[way].format(tmp_path / "script.py", sys.executable)
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=100, cwd=tmp_path)

    if has_cloudpickle:
        assert done.stdout.strip() == "[2.0, 2.0]", done.stderr
    else:
        assert "RW001 model 'm': its build is defined in a notebook, at a prompt or on standard input" in done.stderr
        assert done.stderr.count("put it into a file") == 1


TRACEBACK = 'Traceback (most recent call last):\n  File "models.py", line 3, in build\n    RW1\n'
FINDINGS = [
    Finding(
        "RW734",
        "does-not-fit",
        "error",
        True,
        "last.pt does not fit",
        why="model  checkpoint\nbias   missing",
        next=("build it", "explain"),
    ),
    Finding("RW733", "unreadable", "error", True, "last.pt cannot be read", next=("look",)),
    Finding("RW001", "wrong-usage", "error", True, "no such thing", why="because"),
    Finding("RW001", "wrong-usage", "error", True, "two\nlines"),
]


@pytest.mark.parametrize("finding", FINDINGS, ids=lambda finding: finding.summary.split()[0])
def test_a_finding_that_a_build_ended_in_is_told_instead_of_its_traceback(finding: Finding) -> None:
    cause = RankwiseError(finding)
    error = build_failed("mlp", f"{TRACEBACK}rankwise.weights.tensor_records.CheckpointError: {cause}\n", 1, cause)

    assert error.finding.summary == f"model 'mlp' could not be built: {finding.code} {finding.summary}"
    assert (error.finding.why, error.finding.next) == (finding.why, finding.next)
    assert str(error).startswith("RW807 model 'mlp'") and finding.code in str(error)


@pytest.mark.parametrize("last", ["ValueError: RW734 is not a finding", "SystemExit: 3", "KeyError: 'RW734'"])
def test_any_other_traceback_is_told_itself(last: str) -> None:
    error = build_failed("mlp", TRACEBACK + last, 2, ValueError(last))

    assert error.finding.summary == f"model 'mlp' could not be built (2 times): {last}"
    assert error.finding.why == TRACEBACK + last


class Kernel:
    """Files as the kernel writes them."""

    def __init__(self, folder: Path, groups: str, file: str) -> None:
        self.proc, self.cgroups, self._file = folder / "proc", folder / "cgroup", folder / "cgroup" / file
        (self.proc / "self").mkdir(parents=True)
        (self.proc / "self/cgroup").write_text(groups)
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self.count(0, 0)

    def count(self, machine: int, ours: int | None) -> None:
        (self.proc / "vmstat").write_text(f"nr_free_pages 3\noom_kill {machine}\n")
        if ours is not None:
            self._file.write_text(f"oom_kill_disable 0\nunder_oom 0\nmax 7\noom_kill {ours}\n")

    def watch(self) -> OomWatch:
        return OomWatch(0.0, self.proc, self.cgroups)


GROUPS = {
    "version 2": ("0::/user.slice/a\n", "user.slice/a/memory.events"),
    "version 2 in a container": ("0::/some/where/else\n", "memory.events"),
}


@pytest.mark.parametrize("name", GROUPS)
def test_a_kill_in_our_own_group_is_certain_and_counts_once(tmp_path: Path, name: str) -> None:
    kernel = Kernel(tmp_path, *GROUPS[name])
    watch = kernel.watch()
    assert watch.look(1) == ""

    kernel.count(2, 2)

    assert [watch.look(1.1), watch.look(1.2), watch.look(1.3)] == ["certain", "certain", ""]


def test_a_kill_on_the_machine_is_a_guess_and_counts_once(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path, *GROUPS["version 2"])
    watch = kernel.watch()

    kernel.count(2, 0)

    assert [watch.look(0.1), watch.look(0.2), watch.look(0.3)] == ["perhaps", "perhaps", ""]
    assert "perhaps" in Death(-9, out_of_memory=True, is_guess=True).text
    assert "perhaps" not in Death(-9, out_of_memory=True).text


def test_a_kill_that_no_worker_was_found_for_is_soon_somebody_elses(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path, *GROUPS["version 2"])
    watch = kernel.watch()

    kernel.count(1, 0)
    for moment in (1.0, 2.0, 3.0):
        watch.note(moment)

    assert watch.look(3.1) == ""


def test_a_kernel_that_says_nothing_is_no_reason(tmp_path: Path) -> None:
    assert OomWatch(0.0, tmp_path, tmp_path).look(1) == ""
