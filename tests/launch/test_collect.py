"""What is gathered of a job: how many ranks it has, whose a traceback in the common log is, and which sources are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rankwise.evidence.records import JobEvidence
from rankwise.launch.collect import Collector
from rankwise.launch.plan import RunPlan
from tests.launch.evidence import Scene

TRACEBACK = """Traceback (most recent call last):
  File "/home/ada/train.py", line 7, in <module>
    step()
ValueError: bad sample
"""


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    (tmp_path / "logs").mkdir()
    return tmp_path / "logs"


def collected(scene: Scene, logs: Path, depth: str = "end", **facts: Any) -> JobEvidence:
    collector = Collector(RunPlan(("python", "job.py"), "command", "job"), scene.look(), scene.live, logs, 5)
    return collector.collect(depth, scene.now_ns, 10.0, **facts)


@pytest.mark.parametrize(("sizes", "wanted"), [([2, 2], 2), ([4, 4, 8], 4), ([None, None], None)])
def test_the_world_is_as_large_as_most_ranks_say(scene: Scene, logs: Path, sizes: list[int | None], wanted: int | None) -> None:
    for rank, size in enumerate(sizes):
        if size is None:
            scene.process(11 + rank, RANK=str(rank))
        else:
            scene.rank(11 + rank, rank, world_size=size)

    assert collected(scene, logs).world_size == wanted


@pytest.mark.parametrize(("said", "wanted"), [("2", 2), ("²", None), ("9" * 5000, None)])
def test_before_a_rank_has_joined_its_environment_says_it(scene: Scene, logs: Path, said: str, wanted: int | None) -> None:
    scene.probed(11, RANK="0", WORLD_SIZE=said)

    assert collected(scene, logs).world_size == wanted


def test_two_that_are_one_rank_are_both_in_it(scene: Scene, logs: Path) -> None:
    scene.rank(11, 0)
    scene.look()
    scene.rank(12, 0)

    job = collected(scene, logs, exit_code=3)

    assert {rank: e.pid for rank, e in job.ranks.items()} == {0: 11} and [e.pid for e in job.duplicates] == [12]
    assert (job.exit_code, job.launch_style, job.started_ns, job.now_ns) == (3, "command", 5, scene.now_ns)


@pytest.mark.parametrize(("num_dead", "is_theirs"), [(1, True), (2, False)])
def test_a_traceback_in_the_common_log_is_a_ranks_only_where_it_can_be_nobody_elses(
    scene: Scene, logs: Path, num_dead: int, is_theirs: bool
) -> None:
    scene.probed(10)
    for rank in range(3):
        scene.write(10, k="child_start", pid=11 + rank, env={"RANK": str(rank), "WORLD_SIZE": "3"})
        if rank < num_dead:
            scene.write(10, k="child_exit", pid=11 + rank, code=1)
        else:
            scene.process(11 + rank, parent=10)
    (logs / "launcher.log").write_text(TRACEBACK.replace("ValueError", "OSError") + "tried again\n" + TRACEBACK)

    job = collected(scene, logs)

    assert [[raised.type for raised in e.raised] for e in job.ranks.values()] == [["ValueError"] if is_theirs else [], [], []]


def test_what_a_worker_that_crashed_printed_is_what_its_rank_says(scene: Scene, logs: Path) -> None:
    for rank in range(2):
        scene.rank(11 + rank, rank)
        scene.write(11 + rank, k="exit", kind="exception", code=1, frames=[])
    scene.look()
    scene.ended(11, 1)
    scene.ended(12, 1)
    (logs / "rank-0.log").write_text("ERROR: Unexpected segmentation fault encountered in worker.\n")

    ends = [e.ended for e in collected(scene, logs).ranks.values()]

    assert [ended.said for ended in ends if ended] == ["Unexpected segmentation fault encountered in worker", ""]


def test_the_users_sources_are_read_with_what_stands_beside_them(scene: Scene, logs: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    for name in ("train.py", "helpers.py", "notes.txt"):
        (home / name).write_text(f"# {name}")
    (tmp_path / "elsewhere.py").write_text("# not asked for")
    scene.rank(11, 0)
    scene.write(11, k="raise", type="ValueError", message="", thread="main", text="", frames=[[str(home / "train.py"), 7, "step"]])

    sources = collected(scene, logs).sources

    assert sources == {str(home / "train.py"): "# train.py", str(home / "helpers.py"): "# helpers.py"}


def test_a_source_that_is_gone_or_endless_stops_nothing(scene: Scene, logs: Path, tmp_path: Path) -> None:
    scene.rank(11, 0)
    big = tmp_path / "big" / "train.py"
    big.parent.mkdir()
    big.write_text("x" * (600 << 10))
    for file in (str(big), "/no/such/file.py", str(tmp_path)):
        scene.write(11, k="raise", type="ValueError", message="", thread="main", text="", frames=[[file, 7, "step"]])

    sources = collected(scene, logs).sources

    assert len(sources[str(big)]) == 512 << 10 and sources["/no/such/file.py"] == sources[str(tmp_path)] == ""


def test_what_the_first_ranks_printed_last_is_kept_at_the_end_alone(scene: Scene, logs: Path) -> None:
    for rank in range(6):
        scene.rank(11 + rank, rank, world_size=6)
        (logs / f"rank-{rank}.log").write_text("x" * 10_000 + f"rank {rank}")

    assert collected(scene, logs, depth="flight").log_tails == {}
    tails = collected(scene, logs).log_tails

    assert list(tails) == ["rank-0", "rank-1", "rank-2", "rank-3"]
    assert tails["rank-3"].endswith("rank 3") and len(tails["rank-3"]) == 4000
