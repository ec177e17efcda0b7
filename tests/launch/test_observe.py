"""Which process is which rank, and how each ended: read from journals and a process table that the tests write."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from rankwise.evidence.records import Frame, Thread
from rankwise.launch.observe import source_files
from tests.launch.evidence import Scene

# -- who is who ---------------------------------------------------------------------------------------------------------------


def test_what_runs_below_a_rank_is_its_helper_though_it_has_its_variables(scene: Scene) -> None:
    scene.process(10)
    scene.rank(11, 0, parent=10)
    scene.rank(12, 1, parent=10)
    scene.probed(13, parent=11, RANK="0", WORLD_SIZE="2")  # a DataLoader worker
    scene.process(14, parent=13, RANK="0")
    observer = scene.look()

    assert observer.rank_pids() == {0: [11], 1: [12]}
    assert [helper.pid for helper in observer.evidence_of(0, 11).helpers] == [13, 14]
    assert [helper.pid for helper in observer.launchers({11, 12})] == [10]


def test_a_launcher_that_has_a_rank_of_its_own_is_none(scene: Scene) -> None:
    """torchrun in a pod that has RANK set, which is the pod's number."""
    scene.process(10, RANK="0", WORLD_SIZE="2")
    scene.process(11, parent=10, RANK="0", LOCAL_RANK="0")
    scene.process(12, parent=10, RANK="1", LOCAL_RANK="1")

    assert scene.look().rank_pids() == {0: [11], 1: [12]}


def test_ranks_without_the_probe_are_known_by_their_environment_and_that_is_said(scene: Scene) -> None:
    scene.process(11, RANK="0")
    scene.rank(12, 1)
    observer = scene.look()

    assert observer.rank_pids() == {0: [11], 1: [12]}
    assert "process 11 runs without the probe" in observer.evidence_of(0, 11).blind[0]
    assert observer.evidence_of(1, 12).blind == ()
    assert observer.watched() == {11, 12}


def test_after_a_restart_the_ranks_are_those_of_the_latest_start(scene: Scene) -> None:
    scene.rank(11, 0, TORCHELASTIC_RESTART_COUNT="0")
    scene.rank(12, 1, TORCHELASTIC_RESTART_COUNT="0")
    scene.look()
    scene.ended(11, -9)
    scene.ended(12, 1)
    scene.rank(21, 0, TORCHELASTIC_RESTART_COUNT="1")
    scene.rank(22, 1, TORCHELASTIC_RESTART_COUNT="1")
    observer = scene.look()

    assert observer.rank_pids() == {0: [21], 1: [22]}
    assert observer.processes_of(1) == [12, 22]
    assert observer.evidence_of(0, 21).restarts == 1


def test_two_that_are_one_rank_at_the_same_time_are_both_kept(scene: Scene) -> None:
    scene.rank(12, 0)
    scene.look()
    scene.rank(11, 0)

    assert scene.look().rank_pids() == {0: [12, 11]}, "the older one first"
    scene.ended(12, 1)  # it was there when the other came
    assert scene.look().rank_pids() == {0: [12, 11]}


def test_one_that_ended_before_the_next_came_is_only_its_predecessor(scene: Scene) -> None:
    scene.rank(12, 0)
    scene.look()
    scene.ended(12, 0)
    scene.look()
    scene.rank(11, 0)

    assert scene.look().rank_pids() == {0: [11]}
    scene.ended(11, 0)
    assert scene.look().rank_pids() == {0: [11]}


def test_a_rank_that_ended_before_anybody_saw_it_is_known_from_its_launchers_probe(scene: Scene) -> None:
    scene.probed(10)
    scene.write(10, k="child_start", pid=11, env={"RANK": "0", "WORLD_SIZE": "1"})
    scene.write(10, k="child_exit", pid=11, code=3)
    observer = scene.look()

    assert observer.rank_pids() == {0: [11]}
    ended = observer.end_of(11)
    assert ended is not None and (ended.kind, ended.code) == ("vanished", 3)


# -- progress -----------------------------------------------------------------------------------------------------------------


def test_what_a_process_says_is_progress_and_silence_is_none(scene: Scene) -> None:
    scene.rank(11, 0)
    scene.rank(12, 1)
    began_ns = scene.look().moved_ns[11]
    scene.write(11, k="torch", version="2.13.0")
    observer = scene.look()

    assert observer.moved_ns[11] == scene.now_ns > observer.moved_ns[12] == began_ns


def test_stacks_are_kept_with_those_before_them(scene: Scene) -> None:
    scene.rank(11, 0)
    observer = scene.look()
    first, second = ((Thread("main", (Frame("train.py", line, "main"),), True),) for line in (1, 2))

    observer.look_at_stacks({11: first}, 5)
    observer.look_at_stacks({11: second}, 6)

    seen = observer.evidence_of(0, 11)
    assert (seen.threads, seen.earlier_threads, seen.threads_ns) == (second, first, 6)


# -- how it ended -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "code", "kind", "number"),
    [
        ({"kind": "finished", "code": 0}, 0, "finished", None),
        ({"kind": "exception", "code": 1}, 1, "exception", None),
        ({"kind": "exception", "code": 1}, 0, "finished", None),  # a sys.exit that was caught, and then the end
        ({"kind": "finished", "code": 0}, 3, "sys_exit", None),  # its own `raise SystemExit(3)`
        ({"kind": "os_exit", "code": 9}, 0, "os_exit", None),
        ({"kind": "sys_exit", "code": 256 + 7}, 7, "sys_exit", None),  # of which the system keeps eight bits
        ({"kind": "finished", "code": 0}, -signal.SIGSEGV, "signal", signal.SIGSEGV),
        ({"kind": "finished", "code": 0}, -signal.SIGTERM, "finished", None),  # sent away while it left
        (None, -signal.SIGKILL, "signal", signal.SIGKILL),
        (None, 5, "vanished", None),
        (None, None, "vanished", None),
    ],
)
def test_the_exit_code_knows_better_than_the_process_what_became_of_it(
    scene: Scene, said: dict[str, Any] | None, code: int | None, kind: str, number: int | None
) -> None:
    scene.rank(11, 0)
    if said is not None:
        scene.write(11, k="exit", frames=[["train.py", 3, "main"]], **said)
    scene.look()
    assert scene.observer.end_of(11) is None, "it is there"
    if code is None:
        scene.gone(11)
    else:
        scene.ended(11, code)

    ended = scene.look().end_of(11)

    assert ended is not None and (ended.kind, ended.signal) == (kind, number)
    assert bool(ended.stack) == (said is not None and said["kind"] == kind), "what it said itself is kept where it may be right"


def test_a_process_nobody_heard_of_has_not_ended(scene: Scene) -> None:
    assert scene.look().end_of(77) is None


@pytest.mark.parametrize(("sender", "by"), [(12, "process 12"), (11, "itself"), (None, "")])
def test_who_sent_the_signal_is_told_where_it_is_known(scene: Scene, sender: int | None, by: str) -> None:
    scene.rank(11, 0)
    scene.rank(12, 1)
    if sender is not None:
        scene.write(sender, k="signal", target=11, signal=15, frames=[])
    scene.write(12, k="signal", target=99, signal=9, frames=[])
    scene.write(10, k="signal", target=11, signal=10, frames=[])  # which it lived through
    scene.look()
    scene.ended(11, -15)
    observer = scene.look()

    ended = observer.end_of(11)
    assert ended is not None and ended.by == by
    assert sorted(sent.signal for sent in observer.evidence_of(0, 11).signals) == ([10, 15] if sender else [10])


CRASH = """Fatal Python error: Segmentation fault

Current thread 0x00007f3a7f8b3740 (most recent call first):
  File "/home/ada/train.py", line 7 in step
  File "/home/ada/train.py", line 20 in <module>
"""


@pytest.mark.parametrize("where", ["file", "output"])
def test_a_crash_shows_where_it_was_also_where_the_script_has_a_faulthandler_of_its_own(scene: Scene, where: str) -> None:
    scene.rank(11, 0)
    scene.look()
    scene.ended(11, -signal.SIGSEGV)
    if where == "file":
        (scene.live / "f-11").write_text(CRASH)
    else:
        scene.observer.last_output = lambda pid: "step 3\n" + CRASH if pid == 11 else ""

    ended = scene.look().end_of(11)

    assert ended is not None and (ended.kind, ended.signal) == ("signal", signal.SIGSEGV)
    assert ended.stack[0] == Frame("/home/ada/train.py", 7, "step")


def test_an_abort_says_which_exception_of_cpp_it_was(scene: Scene) -> None:
    scene.rank(11, 0)
    scene.look()
    scene.ended(11, -signal.SIGABRT)
    (scene.live / "f-11").write_text(CRASH.replace("Segmentation fault", "Aborted"))
    scene.observer.last_output = lambda pid: "terminate called\n  what():  connection closed by peer\n"

    ended = scene.look().end_of(11)

    assert ended is not None and (ended.signal, ended.said) == (signal.SIGABRT, "connection closed by peer")


def test_a_crash_without_a_stack_says_which_exception_of_cpp_came_before_it(scene: Scene) -> None:
    scene.rank(11, 0)
    scene.look()
    scene.ended(11, -signal.SIGSEGV)
    scene.observer.last_output = lambda pid: "terminate called\n  what():  Watchdog caught collective operation timeout\n"

    ended = scene.look().end_of(11)

    assert ended is not None and (ended.signal, ended.said) == (signal.SIGSEGV, "Watchdog caught collective operation timeout")


def test_only_the_users_own_files_are_sources() -> None:
    stack = (Frame("/home/ada/train.py", 1, "f"), Frame("/usr/lib/python3.11/threading.py", 1, "run"), Frame("<string>", 1, "g"))

    assert source_files([stack, (Frame("job.py", 1, "f"),)]) == {"/home/ada/train.py"}
