"""A rank that is stuck elsewhere: what it is said to do, and when that is no more than work."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest

from rankwise.diagnose import diagnose
from rankwise.evidence.records import Ended, FileLock, Helper, JobEvidence, OpenConnection, RankEvidence, SentSignal
from rankwise.findings import Finding
from tests.diagnose.jobs import (
    FIVE,
    LOADER,
    NOW_NS,
    PYTHON,
    SECOND,
    TORCH,
    Slot,
    alarms,
    busy,
    did,
    elsewhere,
    expect,
    finished,
    helper,
    in_call,
    job,
    killed,
    log_of,
    main_thread,
    new_group,
    raised,
    rank,
    root,
    samples,
    stack_of,
    thread,
    unseen,
    waiting,
    worker,
)

PLACES = [(2, 0), (3, 1), (4, 3), (8, 5)]  # world size, the rank that is stuck


def stuck(evidence: RankEvidence, world_size: int = 4, **facts) -> JobEvidence:
    """A job in which everybody else waits for this rank."""
    return job(*[evidence if r == evidence.rank else waiting(r) for r in range(world_size)], **facts)


def verdict(evidence: RankEvidence, world_size: int = 4, source: str = "", **facts) -> Finding:
    """The root cause of a job in which everybody waits for this rank, with everything that holds for every cause of this family checked."""
    found = root(stuck(evidence, world_size, sources={"train.py": source} if source else {}, **facts))
    assert [wait.rank for wait in found.waiting] == [r for r in range(world_size) if r != evidence.rank]
    assert f"rank {evidence.rank}" in found.summary
    assert found.severity in ("warning", "info"), "it may still move"
    return found


def at_line(text: str, line: int = 8) -> str:
    """A source whose given line is this text."""
    return "\n" * (line - 1) + f"    {text}\n"


# -- RW301, RW310: at work ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("world_size", "culprit"), PLACES)
def test_rw301_a_loop_that_does_not_end(world_size: int, culprit: int) -> None:
    source = "def train():\n    while not os.path.exists(marker):\n        pass\n"

    found = verdict(busy(culprit, "train.py:3 train"), world_size, source)

    expect(found, "RW301", [culprit], "busy", "loop of line 2", "all_reduce", "10 s", certain=False, deadlock=False, at="train.py:3")
    assert "100% CPU" in found.why


def test_rw310_one_call_of_native_code_that_holds_the_gil() -> None:
    threads = main_thread("train.py:8 train", owns_gil=True, is_active=True)

    found = verdict(busy(1, threads=threads), source=at_line("re.match(pattern, text)"))

    expect(found, "RW310", [1], "native code", "GIL", certain=False, deadlock=False, at="train.py:8")
    assert "re.match" in found.why


def test_a_loop_holds_the_gil_too_and_is_no_native_code() -> None:
    threads = main_thread("train.py:8 train", owns_gil=True, is_active=True)

    found = verdict(busy(1, threads=threads), source="def train():\n" + at_line("while True:", 7) + "        pass\n")

    assert found.code == "RW301"


def test_rw502_a_rank_whose_stack_changes_is_merely_busy() -> None:
    before = main_thread("data.py:30 augment", "train.py:7 train")

    found = verdict(busy(2, earlier_threads=before))

    expect(found, "RW502", [2], "busy", certain=False, deadlock=False)
    assert found.severity == "info"


def test_rw502_a_rank_that_moves_between_lines_of_one_loop_is_merely_busy() -> None:
    source = "def evaluate():\n    for batch in loader:\n        x = load(batch)\n        y = score(x)\n        total += y\n"
    evidence = busy(0, "train.py:5 evaluate", earlier_threads=main_thread("train.py:3 evaluate"))

    found = verdict(evidence, source=source)

    assert found.code in ("RW502", "RW301"), "a loop at work; whether it ends cannot be seen"
    assert not found.certain and not found.deadlock


def test_rw502_a_rank_that_writes_its_checkpoint_is_busy() -> None:
    growing = tuple(replace(s, written_bytes=i * (200 << 20)) for i, s in enumerate(samples(state="D", cpu=0.05)))

    found = verdict(elsewhere(0, "train.py:8 save", inside=f"{TORCH}/serialization.py:980 _save", samples=growing))

    expect(found, "RW502", [0], certain=False, deadlock=False)


def test_rw502_a_rank_that_reads_its_data_is_busy() -> None:
    growing = tuple(replace(s, read_bytes=i * (50 << 20)) for i, s in enumerate(samples(state="D", cpu=0.1)))

    found = verdict(elsewhere(0, "data.py:8 unpack", samples=growing))

    expect(found, "RW502", [0], certain=False, deadlock=False)


# -- RW302: asleep ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("world_size", "culprit"), PLACES)
@pytest.mark.parametrize("line", ["time.sleep(3600)", "sleep(3600)"])
def test_rw302_a_long_sleep(line: str, world_size: int, culprit: int) -> None:
    found = verdict(elsewhere(culprit), world_size, at_line(line))

    expect(found, "RW302", [culprit], "sleep", certain=False, deadlock=False, at="train.py:8")


WAITS_FOR_FILE = "def wait_for(path):\n    while not os.path.exists(path):\n        time.sleep(0.5)\n"
ASKS_WITHIN = "def wait_for(path):\n    while True:\n        time.sleep(0.5)\n        if path.is_file():\n            break\n"
FETCHES = "def wait_for(path):\n    while not os.path.exists(path):\n        time.sleep(0.5)\n        fetch(path)\n"


def polling(number: int) -> RankEvidence:
    return elsewhere(number, "train.py:3 wait_for", samples=samples(wakes=2))


@pytest.mark.parametrize(("source", "asked"), [(WAITS_FOR_FILE, "not os.path.exists(path)"), (ASKS_WITHIN, "path.is_file()")])
def test_rw302_a_rank_that_polls_for_a_file_while_all_others_wait_for_it(source: str, asked: str) -> None:
    found = verdict(polling(1), source=source)

    expect(found, "RW302", [1], "polls for a file", asked, certain=False, deadlock=False, at="train.py:3")
    assert found.severity == "warning"


@pytest.mark.parametrize(
    ("others", "source", "facts"),
    [
        ([waiting(0), busy(2, "data.py:9 load")], WAITS_FOR_FILE, {}),
        ([waiting(0), waiting(2, samples=samples(cpu=0.6))], WAITS_FOR_FILE, {}),
        ([waiting(0), waiting(2, helpers=(helper(77, 12, state="R", command="aws s3 cp"),))], WAITS_FOR_FILE, {}),
        ([waiting(0), waiting(2)], WAITS_FOR_FILE, {"stall_after_s": 60.0}),
        ([waiting(0), waiting(2)], FETCHES, {}),
    ],
    ids=["another rank works", "a thread of a waiting rank works", "a child process works", "not for long", "the loop itself works"],
)
def test_rw502_a_rank_that_polls_for_a_file_may_get_it(others: list[RankEvidence], source: str, facts: dict[str, float]) -> None:
    found = [f for f in diagnose(job(polling(1), *others, sources={"train.py": source}, **facts)) if 1 in {p.rank for p in f.culprits}]

    assert [f.code for f in found] == ["RW502"]


def test_rw502_a_rank_that_sleeps_and_wakes_again_is_polling() -> None:
    found = verdict(elsewhere(1, samples=samples(wakes=10)), source=at_line("time.sleep(0.1)"))

    expect(found, "RW502", [1], "sleeps", "again", certain=False, deadlock=False)


# -- RW303, RW312: threads ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inside", "line", "words"),
    [
        (f"{PYTHON}/threading.py:320 wait", "event.wait()", "lock"),
        (f"{PYTHON}/threading.py:1112 join", "thread.join()", "thread"),
        (f"{PYTHON}/queue.py:171 get", "item = q.get()", "queue"),
        (f"{PYTHON}/concurrent/futures/_base.py:451 result", "future.result()", "future"),
        ([], "with self._lock:", "lock"),
        ([], "lock.acquire()", "lock"),
    ],
)
def test_rw303_a_wait_inside_the_own_process(inside, line: str, words: str) -> None:
    stack = [inside, f"{PYTHON}/threading.py:327 wait"] if "queue" in str(inside) else inside

    found = verdict(elsewhere(1, inside=stack), source=at_line(line))

    expect(found, "RW303", [1], "waits for", words, certain=False, deadlock=False, at="train.py:8")


def test_rw303_names_the_thread_that_holds_the_other_lock() -> None:
    source = "def a():\n    with lock_b:\n        pass\n" + at_line("with lock_a:", 5)
    threads = (*main_thread("train.py:8 train"), thread("train.py:2 a", name="logger"))

    found = verdict(elsewhere(1, threads=threads), source=source)

    assert found.code == "RW303"
    assert "logger" in found.why and "train.py:2" in found.why


@pytest.mark.parametrize("culprit", [0, 3])
def test_rw312_a_helper_thread_that_has_died(culprit: int) -> None:
    dead = raised(rank(culprit), "KeyError", "'x'", "loader.py:5 prefetch").raised[0]
    evidence = elsewhere(culprit, inside=[f"{PYTHON}/queue.py:171 get"], raised=(replace(dead, thread="prefetcher"),))

    found = verdict(evidence)

    expect(found, "RW312", [culprit], "helper thread", "prefetcher", "dead", certain=False, deadlock=False, at="train.py:8")
    assert "KeyError" in found.why and "loader.py:5" in found.why


def test_a_thread_that_died_long_ago_does_not_explain_a_rank_at_work() -> None:
    dead = replace(raised(rank(1)).raised[0], thread="uploader")

    assert verdict(busy(1, raised=(dead,))).code == "RW301"


# -- RW304: file locks --------------------------------------------------------------------------------------------------------


def lock_of(holder: int | None, waiter: int = 1) -> tuple[FileLock, ...]:
    return (FileLock("/data/cache.lock", 4200 + waiter, holder),)


def test_rw304_a_lock_of_an_unknown_process() -> None:
    found = verdict(elsewhere(1, locks=lock_of(99)))

    expect(found, "RW304", [1], "cache.lock", "process 99", certain=False, deadlock=False, at="train.py:8")


def test_rw304_a_lock_held_by_a_rank_that_waits_for_this_one_is_a_deadlock() -> None:
    evidence = job(
        waiting(0, "barrier", "train.py:20 build"), elsewhere(1, locks=lock_of(4200)), waiting(2, "barrier", "train.py:20 build")
    )

    found = root(evidence)

    assert (found.code, found.severity, found.certain, found.deadlock) == ("RW304", "error", True, True)
    assert {place.rank for place in found.culprits} == {0, 1}
    assert 0 not in {wait.rank for wait in found.waiting}, "it is shown as a culprit"
    assert "rank 0" in found.summary and "cache.lock" in found.summary


@pytest.mark.parametrize(
    "holder",
    [
        busy(0, "train.py:20 build"),
        elsewhere(0, "train.py:20 build"),
        waiting(0, group="1", groups=(new_group(0, 3, name="1"),)),
    ],
    ids=["at work", "reading", "waiting for somebody else"],
)
def test_a_lock_held_by_a_rank_that_does_not_wait_for_this_one_is_no_deadlock(holder: RankEvidence) -> None:
    evidence = job(holder, elsewhere(1, locks=lock_of(4200)), waiting(2), busy(3))

    assert alarms(evidence) == []


def test_ranks_that_queue_for_one_lock_raise_no_alarm() -> None:
    evidence = job(busy(0, "train.py:20 build"), *[elsewhere(r, locks=lock_of(4200, r)) for r in (1, 2)], waiting(3))

    assert alarms(evidence) == []


# -- RW305, RW306, RW315: pipes, sockets, children ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inside", "line"),
    [
        ([], "data = os.read(fd, 4096)"),
        ([], "answer = input()"),
        ([], "line = proc.stdout.readline()"),
        ([], "x = conn.recv()"),
        (f"{PYTHON}/multiprocessing/connection.py:395 _recv", "x = conn.recv()"),
        ([f"{PYTHON}/multiprocessing/connection.py:395 _recv", f"{PYTHON}/multiprocessing/queues.py:103 get"], "x = q.get()"),
    ],
)
def test_rw305_a_pipe_that_nobody_writes_to(inside, line: str) -> None:
    found = verdict(elsewhere(2, inside=inside), source=at_line(line))

    expect(found, "RW305", [2], "pipe", certain=False, deadlock=False, at="train.py:8")


@pytest.mark.parametrize(
    ("inside", "line"),
    [
        ([f"{PYTHON}/ssl.py:1100 read", f"{PYTHON}/http/client.py:280 begin"], "requests.get(url)"),
        (f"{PYTHON}/socket.py:706 readinto", "urllib.request.urlopen(url)"),
        ([], "sock.recv(4096)"),
        ([], "conn, _ = server.accept()"),
    ],
)
def test_rw306_a_network_peer_that_does_not_answer(inside, line: str) -> None:
    peers = (
        OpenConnection("10.0.0.1:40000", "10.9.8.7:443", "ESTABLISHED"),
        OpenConnection("10.0.0.1:40001", "10.0.0.2:29500", "ESTABLISHED", 4200),
    )

    found = verdict(elsewhere(3, inside=inside, connections=peers), source=at_line(line))

    expect(found, "RW306", [3], "network", "10.9.8.7:443", certain=False, deadlock=False, at="train.py:8")


@pytest.mark.parametrize(
    ("inside", "line"),
    [
        ([f"{PYTHON}/subprocess.py:1264 _try_wait", f"{PYTHON}/subprocess.py:1200 wait"], "subprocess.run(['make'])"),
        ([f"{PYTHON}/multiprocessing/popen_fork.py:27 poll", f"{PYTHON}/multiprocessing/process.py:149 join"], "p.join()"),
        ([], "os.waitpid(pid, 0)"),
        ([], "os.system('make')"),
    ],
)
def test_rw315_a_child_process(inside, line: str) -> None:
    child = helper(9000, 4201, "build.py:40 link", command="python build.py")

    found = verdict(elsewhere(1, inside=inside, helpers=(child,)), source=at_line(line))

    expect(found, "RW315", [1], "child process 9000", "build.py", certain=False, deadlock=False, at="train.py:8")
    assert "build.py:40" in found.why


def test_rw315_a_child_that_is_no_python_process() -> None:
    child = Helper(9000, "ffmpeg -i a.mp4", 4201, (), "S")

    found = verdict(elsewhere(1, inside=f"{PYTHON}/subprocess.py:1200 wait", helpers=(child,)))

    expect(found, "RW315", [1], "9000", "ffmpeg", certain=False, deadlock=False)


def test_a_child_that_works_is_no_alarm() -> None:
    child = helper(9000, 4201, "build.py:40 link", state="R", command="cc1plus")

    assert alarms(stuck(elsewhere(1, inside=f"{PYTHON}/subprocess.py:1200 wait", helpers=(child,)))) == []


# -- RW307 … RW309: the DataLoader --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("world_size", "culprit"), PLACES)
def test_rw307_a_worker_that_is_stuck(world_size: int, culprit: int) -> None:
    pid = 4200 + culprit
    workers = (worker(5000, pid, "data.py:9 __getitem__"), worker(5001, pid, f"{PYTHON}/multiprocessing/queues.py:103 get"))

    found = verdict(elsewhere(culprit, inside=LOADER, helpers=workers), world_size)

    expect(found, "RW307", [culprit], "DataLoader worker", "5000", "__getitem__", certain=False, deadlock=False, at="data.py:9")


def test_a_forked_worker_that_waits_for_work_is_not_where_its_parent_was() -> None:
    """Below a forked worker's loop lie the frames that its parent had when it forked; the worker after it is the one that is stuck."""
    forked = "train.py:30 train"
    idle = worker(5000, 4201, f"{PYTHON}/multiprocessing/queues.py:103 get")
    idle = replace(idle, threads=(replace(idle.threads[0], frames=(*idle.threads[0].frames, *stack_of(forked))),))

    found = verdict(elsewhere(1, inside=LOADER, helpers=(idle, worker(5001, 4201, "data.py:9 __getitem__"))))

    expect(found, "RW307", [1], "5001", "__getitem__", certain=False, deadlock=False, at="data.py:9")


def test_rw307_a_worker_that_is_stopped() -> None:
    found = verdict(elsewhere(1, inside=LOADER, helpers=(worker(5000, 4201, "data.py:9 __getitem__", state="T"),)))

    expect(found, "RW307", [1], "stopped by a signal", "5000", certain=True, deadlock=False)


@pytest.mark.parametrize("state", ["", "Z"])
def test_rw308_a_worker_that_is_gone(state: str) -> None:
    gone = Helper(5000, "python train.py", 4201, (), state, True, ended=killed(rank(1)).ended, is_dataloader_worker=state == "Z")

    found = verdict(elsewhere(1, inside=LOADER, helpers=(gone,)))

    expect(found, "RW308", [1], "DataLoader worker", "dead", certain=False, deadlock=False, at="train.py:8")


def test_rw308_one_of_several_workers_is_gone() -> None:
    gone = Helper(5000, "python train.py", 4201, (), "", True, ended=killed(rank(1)).ended, is_dataloader_worker=True)
    idle = worker(5001, 4201, f"{PYTHON}/selectors.py:415 select", f"{PYTHON}/multiprocessing/queues.py:113 get")

    found = verdict(elsewhere(1, inside=LOADER, helpers=(gone, idle)))

    expect(found, "RW308", [1], "5000", certain=False, deadlock=False)


SPAWNED = "python -c from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=8, pipe_handle=12) --multiprocessing-fork"


@pytest.mark.parametrize("stack", [(), (f"{PYTHON}/importlib/_bootstrap.py:1176 _find_and_load",)])
def test_workers_of_the_last_epoch_are_not_dead_while_new_ones_start(stack: tuple[str, ...]) -> None:
    old = Helper(5000, "python train.py", 4201, (), "", True, ended=finished(1).ended)
    tracker = helper(
        5001, 4201, f"{PYTHON}/multiprocessing/resource_tracker.py:200 main", command="python -c from multiprocessing.resource_tracker"
    )
    new = helper(5002, 4201, *stack, state="R", command=SPAWNED)

    found = verdict(elsewhere(1, inside=LOADER, helpers=(old, tracker, new)))

    expect(found, "RW502", [1], "DataLoader workers", "5002", "starting", certain=False, deadlock=False)
    assert found.severity == "info"
    all_wait = [elsewhere(r, inside=LOADER, helpers=(new,), last_progress_ns=NOW_NS - 20 * SECOND) for r in range(2)]
    assert diagnose(job(*all_wait)) == []


def test_a_spawned_process_at_work_is_no_worker_that_starts() -> None:
    gone = Helper(5000, "python train.py", 4201, (), "", True, ended=killed(rank(1)).ended)
    manager = helper(5001, 4201, "train.py:90 serve", f"{PYTHON}/multiprocessing/process.py:314 _bootstrap", command=SPAWNED)

    assert verdict(elsewhere(1, inside=LOADER, helpers=(gone, manager))).code == "RW308"


def test_ranks_that_compute_on_a_crowded_machine_are_not_idle() -> None:
    ranks = [elsewhere(r, samples=samples(cpu=0.15, state="R"), last_progress_ns=NOW_NS - 12 * SECOND) for r in range(2)]

    assert not [f for f in diagnose(job(*ranks, sources={"train.py": at_line("loss.backward()")})) if "all ranks stand" in f.summary]


def test_rw309_a_lock_that_was_held_at_the_fork() -> None:
    source = "class Data:\n    def __getitem__(self, i):\n        with LOCK:\n            return self.x[i]\n"

    found = root(stuck(elsewhere(1, inside=LOADER, helpers=(worker(5000, 4201, "data.py:3 __getitem__"),)), sources={"data.py": source}))

    expect(found, "RW309", [1], "DataLoader worker", "5000", "lock", certain=False, deadlock=False, at="data.py:3")
    assert "forked" in found.why


def test_loading_in_the_main_process_is_told_by_the_line_itself() -> None:
    inside = ["data.py:9 __getitem__", f"{TORCH}/utils/data/_utils/fetch.py:52 fetch", f"{TORCH}/utils/data/dataloader.py:700 _next_data"]

    found = root(stuck(elsewhere(1, inside=inside), sources={"data.py": at_line("time.sleep(99)", 9)}))

    expect(found, "RW302", [1], "sleep", certain=False, deadlock=False, at="data.py:9")


def test_workers_at_work_are_no_alarm() -> None:
    busy_worker = worker(5000, 4201, "data.py:30 augment", state="R")

    assert alarms(stuck(elsewhere(1, inside=LOADER, helpers=(busy_worker,)))) == []


# -- RW311, RW313, RW314 ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["T", "t"])
@pytest.mark.parametrize(("world_size", "culprit"), PLACES)
def test_rw311_a_stopped_process(state: str, world_size: int, culprit: int) -> None:
    found = verdict(elsewhere(culprit, samples=samples(state=state)), world_size)

    expect(found, "RW311", [culprit], "stopped", "SIGSTOP", certain=True, deadlock=False)
    assert f"kill -CONT {4200 + culprit}" in found.why


def test_rw311_names_who_stopped_it() -> None:
    sent = SentSignal(by=777, target=4201, signal=int(signal.SIGSTOP), time_ns=NOW_NS)

    assert "process 777" in verdict(elsewhere(1, samples=samples(state="T"), signals=(sent,))).why


def test_rw311_a_rank_that_is_stopped_inside_a_collective() -> None:
    others_behind = [waiting(r, after=did(times=6)) for r in (0, 2, 3)]
    evidence = job(*others_behind, waiting(1, samples=samples(state="T")))

    expect(root(evidence), "RW311", [1], "stopped", certain=True, deadlock=False)


@pytest.mark.parametrize(("state", "swap", "words"), [("D", 0, "state D"), ("S", 4 << 30, "4.0 GiB swapped")])
def test_rw313_the_machine_holds_it_up(state: str, swap: int, words: str) -> None:
    found = verdict(elsewhere(2, samples=samples(state=state, swap=swap)))

    expect(found, "RW313", [2], "machine", words, certain=False, deadlock=False)


@pytest.mark.parametrize(("world_size", "culprit"), PLACES)
def test_rw314_whatever_else_it_does_its_line_is_shown(world_size: int, culprit: int) -> None:
    found = verdict(elsewhere(culprit), world_size, at_line("device.synchronize()"))

    expect(found, "RW314", [culprit], "stuck", "train.py:8", certain=False, deadlock=False, at="train.py:8")
    assert "did not change" in found.why


def test_a_rank_whose_stack_changed_between_two_looks_is_not_stuck() -> None:
    """An evaluation on one rank, with long pauses: it may be slow, but it moves."""
    found = verdict(elsewhere(1, "train.py:8 save", earlier_threads=main_thread("train.py:20 evaluate")))

    expect(found, "RW502", [1], "moves", "changed between two looks", certain=False, deadlock=False)


def test_rw314_without_a_stack_it_says_so() -> None:
    found = verdict(elsewhere(1, threads=(), earlier_threads=(), samples=()))

    expect(found, "RW314", [1], certain=False, deadlock=False)
    assert "could not be read" in found.why


def test_rw314_a_rank_without_the_probe_is_named_all_the_same() -> None:
    found = verdict(unseen(2))

    expect(found, "RW314", [2], certain=False, deadlock=False)


# -- who waits for whom -------------------------------------------------------------------------------------------------------


def test_several_ranks_that_are_stuck_are_told_one_by_one() -> None:
    evidence = job(waiting(0), elsewhere(1), busy(2), waiting(3), sources={"train.py": at_line("time.sleep(9)")})

    found = diagnose(evidence)

    assert sorted((finding.code, finding.culprits[0].rank) for finding in found) == [("RW301", 2), ("RW302", 1)]


@pytest.mark.parametrize("world_size", [8, 64])
def test_ranks_that_do_the_same_are_told_together(world_size: int) -> None:
    found = diagnose(job(waiting(0), *[busy(r) for r in range(1, world_size)]))

    assert len(found) == 1
    assert f"ranks 1-{world_size - 1}" in found[0].summary
    assert [place.rank for place in found[0].culprits] == list(range(1, world_size))


def test_a_rank_is_only_blamed_by_those_who_need_it() -> None:
    groups = (new_group(0, 1, name="1"), new_group(2, 3, name="2"))
    evidence = job(waiting(0, group="1", groups=groups), elsewhere(1, groups=groups), busy(2, groups=groups), busy(3, groups=groups))

    (found,) = diagnose(evidence)

    assert ([place.rank for place in found.culprits], [wait.rank for wait in found.waiting]) == ([1], [0])


def test_the_first_stage_of_a_pipeline_is_what_all_the_others_wait_for() -> None:
    evidence = job(elsewhere(0), *[in_call(r, "recv", peer=r - 1) for r in (1, 2, 3)], sources={"train.py": at_line("time.sleep(9)")})

    found = root(evidence)

    assert (found.code, [place.rank for place in found.culprits]) == ("RW302", [0])


def test_nobody_waits_so_nothing_is_wrong() -> None:
    assert diagnose(job(elsewhere(0), busy(1), elsewhere(2))) == []


def test_how_long_is_told_from_the_last_to_arrive() -> None:
    early = replace(waiting(0), collectives=log_of([*FIVE, Slot(done=False)], ended_ns=NOW_NS - 95 * SECOND))
    evidence = job(early, waiting(1), elsewhere(2))

    assert "for 10 s" in root(evidence).why


def test_a_wait_that_has_just_begun_is_no_reason_to_worry() -> None:
    fresh = [replace(waiting(r), collectives=log_of([*FIVE, Slot(done=False)], ended_ns=NOW_NS - SECOND)) for r in range(3)]

    assert alarms(job(*fresh, busy(3))) == []


# -- what only the kernel, a library's frames or a dead process tell ----------------------------------------------------------


@pytest.mark.parametrize(
    ("wchan", "code", "words"),
    [
        ("wait_for_partner", "RW305", "FIFO"),
        ("anon_pipe_read", "RW305", "pipe"),
        ("hrtimer_nanosleep", "RW302", "sleeps"),
        ("flock_lock_inode_wait", "RW304", "file lock"),
        ("inet_csk_accept", "RW306", "socket"),
        ("do_wait", "RW315", "child"),
        ("futex_do_wait", "RW303", "lock"),
    ],
)
def test_where_the_line_tells_nothing_the_kernel_does(wchan: str, code: str, words: str) -> None:
    found = verdict(elsewhere(1, samples=samples(wchan=wchan)), source=at_line("engine.step()"))

    expect(found, code, [1], words, certain=False, deadlock=False, at="train.py:8")
    assert wchan in found.why


def test_a_kernel_function_of_no_meaning_is_not_interpreted() -> None:
    assert verdict(elsewhere(1, samples=samples(wchan="do_something")), source=at_line("engine.step()")).code == "RW314"


def test_rw304_a_library_that_polls_its_lock() -> None:
    frames = [f"{PYTHON}/site-packages/filelock/_api.py:200 acquire", f"{PYTHON}/site-packages/filelock/_api.py:220 __enter__"]

    found = verdict(elsewhere(1, inside=frames), source=at_line('with FileLock("vocab.lock"):'))

    expect(found, "RW304", [1], "file lock", "filelock", certain=False, deadlock=False, at="train.py:8")
    assert "vocab.lock" in found.why


@pytest.mark.parametrize("is_dead", [True, False])
def test_rw315_a_pool_of_processes(is_dead: bool) -> None:
    frames = [f"{PYTHON}/threading.py:327 wait", f"{PYTHON}/multiprocessing/pool.py:765 wait", f"{PYTHON}/multiprocessing/pool.py:367 map"]
    end = Ended("signal", NOW_NS, signal=9) if is_dead else None

    found = verdict(elsewhere(1, inside=frames, helpers=(helper(77, 4201, ended=end),)), source=at_line("rows = pool.map(embed, rows)"))

    expect(found, "RW315", [1], "pool", certain=False, deadlock=False, at="train.py:8")
    assert ("SIGKILL" in found.why) == is_dead


@pytest.mark.parametrize(("ago_s", "severity"), [(20, "info"), (90, "warning")])
def test_all_ranks_wait_for_something_outside_the_job(ago_s: int, severity: str) -> None:
    still = [elsewhere(r, samples=samples(wakes=10), last_progress_ns=NOW_NS - ago_s * SECOND) for r in range(3)]

    (found,) = [f for f in diagnose(job(*still, sources={"train.py": at_line("time.sleep(0.1)")})) if f.code.startswith("RW3")]

    expect(found, "RW302", [0, 1, 2], "all ranks", "sleeps and wakes", certain=False, deadlock=False, at="train.py:8")
    assert found.severity == severity


def test_ranks_that_compute_or_stand_apart_are_not_idle_together() -> None:
    old = NOW_NS - 90 * SECOND
    at_work = [busy(r, last_progress_ns=old) for r in range(2)]
    apart = [elsewhere(r, f"train.py:{8 + r} train", last_progress_ns=old) for r in range(2)]

    for ranks in (at_work, apart):
        assert not [f for f in diagnose(job(*ranks, sources={"train.py": at_line("time.sleep(0.1)")})) if "all ranks stand" in f.summary]
