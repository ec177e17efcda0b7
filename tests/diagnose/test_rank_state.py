"""What each rank is doing: waiting, joining, elsewhere or gone, and whose end is only an echo."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest

from rankwise.diagnose.rank_state import first_raised, is_echo, is_timeout, rank_state_of, rank_states
from rankwise.evidence.records import Call, Raised
from tests.diagnose.jobs import (
    C10D,
    FIVE,
    NOW_NS,
    PYTHON,
    SECOND,
    TORCH,
    Slot,
    before_init,
    busy,
    calls_of,
    did,
    echo,
    elsewhere,
    ended,
    finished,
    gradients,
    in_backward,
    in_call,
    in_forward,
    in_init,
    job,
    killed,
    main_thread,
    raised,
    rank,
    returned,
    samples,
    stack_of,
    terminated,
    thread,
    unseen,
    waiting,
)


def test_a_pending_collective_with_an_open_call_is_a_wait() -> None:
    state = rank_state_of(waiting(1, "broadcast", at="train.py:14 sync", peer=2))

    assert (state.kind, state.op, state.group, state.seq, state.peer) == ("waiting", "broadcast", "0", 6, 2)
    assert state.frame is not None
    assert (state.frame.line, state.frame.function) == (14, "sync")
    assert state.since_ns == NOW_NS - 10 * SECOND


@pytest.mark.parametrize(
    ("evidence", "says"),
    [
        (in_backward(0), "all_reduce (gradients, in backward)"),
        (in_forward(0), "broadcast (in the DDP forward)"),
        (waiting(0, "all_gather", origin="ddp"), "all_gather (in the DDP constructor)"),
        (waiting(0, "barrier"), "barrier"),
    ],
)
def test_says_which_part_of_ddp_a_collective_belongs_to(evidence, says) -> None:
    state = rank_state_of(evidence)

    assert state.kind == "waiting"
    assert state.op_text == says


def test_without_a_recorder_the_open_call_tells_the_wait() -> None:
    state = rank_state_of(waiting(0, "barrier", at="train.py:20 main", recorder=False))

    assert (state.kind, state.op, state.frame.line) == ("waiting", "barrier", 20)


@pytest.mark.parametrize("recorder", [True, False])
def test_a_long_forward_at_work_is_no_wait(recorder: bool) -> None:
    opened = Call("forward", NOW_NS - 9 * SECOND, 0, stack_of("train.py:11 train"))
    evidence = busy(0, "net.py:8 forward", recorder=recorder)

    state = rank_state_of(replace(evidence, calls=(*evidence.calls, opened)))

    assert state.kind == "busy"
    assert state.frame.file.endswith("net.py")


def test_started_but_unfinished_nccl_work_is_no_wait_while_the_main_thread_works() -> None:
    pending = [*FIVE, *did(done=False, times=3)]

    assert rank_state_of(returned(busy(0, "train.py:20 augment", after=pending))).kind == "busy"


def test_the_same_work_is_a_wait_once_the_main_thread_only_waits_for_it() -> None:
    pending = [*FIVE, *did(at="train.py:12 train", done=False), *did(at="train.py:13 train", done=False)]

    state = rank_state_of(returned(elsewhere(0, "train.py:15 train", after=pending)))

    assert (state.kind, state.seq) == ("waiting", 6), "the first one is what it waits for"


def test_an_unfinished_entry_that_later_ones_overtook_does_not_count() -> None:
    forgotten = [Slot(group="side", done=False), *FIVE]

    at_work = returned(busy(0, after=forgotten))
    in_barrier = waiting(0, "barrier", after=forgotten)

    assert rank_state_of(at_work).kind == "busy"
    assert rank_state_of(in_barrier).op == "barrier"


def test_the_open_call_outside_the_record_wins_over_an_older_pending_entry() -> None:
    left = did(at="train.py:9 train", done=False)

    state = rank_state_of(in_call(0, "recv", "train.py:14 train", peer=1, after=[*FIVE, *left]))

    assert (state.op, state.peer, state.seq) == ("recv", 1, None)


@pytest.mark.parametrize("op", ["isend", "irecv", "batch_isend_irecv"])
def test_a_wait_for_a_started_transfer_shows_as_an_idle_line_of_the_user(op: str) -> None:
    done = [*did(times=2), Slot(op, at="train.py:14 exchange", peer=3)]

    state = rank_state_of(elsewhere(0, "train.py:15 exchange", after=done))

    assert (state.kind, state.op, state.peer) == ("waiting", op, 3)
    assert state.frame.line == 15


def test_a_started_transfer_is_no_wait_while_the_rank_works_or_is_in_a_library() -> None:
    done = [*did(times=2), Slot("isend", at="train.py:14 exchange", peer=3)]

    assert rank_state_of(busy(0, "train.py:15 exchange", after=done)).kind == "busy"
    assert rank_state_of(elsewhere(0, "train.py:15 exchange", inside=f"{PYTHON}/socket.py:700 readinto", after=done)).kind == "busy"


def test_ranks_before_inside_and_after_the_start() -> None:
    kinds = [rank_state_of(evidence).kind for evidence in (before_init(0), in_init(1), elsewhere(2), finished(3))]

    assert kinds == ["before_init", "init", "busy", "ended"]


@pytest.mark.parametrize(("op", "kind"), [("barrier", "waiting"), ("init_process_group", "init")])
def test_a_rank_without_the_probe_is_known_by_its_stack(op: str, kind: str) -> None:
    state = rank_state_of(unseen(1, at="train.py:9 main", inside=f"{TORCH}/distributed/distributed_c10d.py:4100 {op}"))

    assert (state.kind, state.op, state.frame.line) == (kind, op, 9)


def test_a_rank_that_lost_its_peer_counts_as_waiting_where_it_was() -> None:
    state = rank_state_of(echo(in_backward(2, at="train.py:30 train")))

    assert (state.kind, state.op, state.inside, state.seq) == ("waiting", "all_reduce", "backward", 6)
    assert state.is_echo
    assert state.frame.line == 30


def test_a_rank_that_lost_its_peer_while_joining_counts_as_joining() -> None:
    evidence = in_init(1, error="DistNetworkError: connection reset by peer", ended_ns=NOW_NS)

    state = rank_state_of(
        raised(evidence, "torch.distributed.DistNetworkError", "recvValue failed: Connection reset by peer", "train.py:3 main")
    )

    assert (state.kind, state.is_echo) == ("init", True)


def test_a_rank_with_an_error_of_its_own_has_ended_there() -> None:
    state = rank_state_of(raised(waiting(1), "ValueError", "bad sample", at="data.py:7 load"))

    assert state.kind == "ended"
    assert state.frame.file.endswith("data.py")


def test_what_a_rank_did_until_the_launcher_ended_it_still_counts() -> None:
    states = rank_states(job(raised(elsewhere(0), ago_s=20), terminated(waiting(1)), killed(waiting(2), signal.SIGKILL)))

    assert [state.kind for state in states.values()] == ["ended", "waiting", "ended"]


def test_a_rank_that_was_terminated_before_anybody_failed_has_ended_by_itself() -> None:
    assert rank_states(job(waiting(0), terminated(waiting(1))))[1].kind == "ended"


def test_a_rank_of_which_nothing_is_known_but_its_absence_has_ended() -> None:
    state = rank_state_of(replace(rank(1), alive=False, ended=None))

    assert (state.kind, state.frame) == ("ended", None)


def test_every_rank_gets_a_state() -> None:
    assert list(rank_states(job(waiting(0), busy(3), finished(5)))) == [0, 3, 5]


ECHOES = [
    ("RuntimeError", "[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:40001"),
    ("RuntimeError", "Connection reset by peer"),
    ("torch.distributed.DistBackendError", "NCCL error in: …, ncclRemoteError: A call failed possibly due to a network error"),
    ("torch.distributed.DistBackendError", "NCCL communicator was aborted on rank 3."),
    ("torch.distributed.DistNetworkError", "The client socket has failed to connect, Broken pipe"),
    ("torch.distributed.elastic.multiprocessing.api.SignalException", "Process 99 got signal: 15"),
    ("RuntimeError", "Application timeout caused pair closure"),
]
TIMEOUTS = [
    ("RuntimeError", "[../gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete"),
    ("torch.distributed.DistStoreError", "Timed out after 1801 seconds waiting for clients. 1/2 clients joined."),
    ("torch.distributed.DistBackendError", "NCCL watchdog: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=6"),
    ("RuntimeError", "Rank 0 successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 1"),
]
OWN = [
    ("ValueError", "bad sample"),
    ("KeyError", "'heart'"),
    ("TimeoutError", "the read operation timed out"),
    ("requests.exceptions.ReadTimeout", "HTTPSConnectionPool(host='data.example', port=443): Read timed out."),
    ("queue.Empty", ""),
    ("RuntimeError", "Expected to have finished reduction in the prior iteration before starting a new one."),
    ("RuntimeError", "DataLoader timed out after 30 seconds"),
    ("FileNotFoundError", "[Errno 2] No such file or directory: 'heartbeat.csv'"),
    ("ConnectionRefusedError", "[Errno 111] Connection refused: http://tracker.example:5000"),
    ("subprocess.TimeoutExpired", "Command '['convert', 'a.png']' timed out after 60 seconds"),
]


@pytest.mark.parametrize(("name", "message"), ECHOES + TIMEOUTS)
def test_errors_that_only_say_that_another_rank_is_gone_or_late_are_echoes(name: str, message: str) -> None:
    error = Raised(name, message, (), NOW_NS)

    assert is_echo(error)
    assert is_timeout(error) == ((name, message) in TIMEOUTS)


@pytest.mark.parametrize(("name", "message"), OWN)
def test_errors_of_the_users_own_are_no_echoes(name: str, message: str) -> None:
    assert not is_echo(Raised(name, message, stack_of("train.py:8 train"), NOW_NS))


def test_a_network_error_of_the_users_own_code_is_no_echo() -> None:
    tracker = stack_of([f"{PYTHON}/http/client.py:1000 connect", "tracker.py:12 log", "train.py:8 train"])

    assert not is_echo(Raised("ConnectionResetError", "[Errno 104] Connection reset by peer", tracker, NOW_NS))
    assert is_echo(Raised("RuntimeError", "Connection reset by peer", stack_of([C10D, "train.py:8 train"]), NOW_NS))


def test_the_exception_of_the_main_thread_is_the_one_that_ended_the_rank() -> None:
    helper = Raised("KeyError", "'x'", (), NOW_NS, thread="prefetch")

    assert first_raised(replace(rank(0), raised=(helper,))) is None
    assert first_raised(replace(raised(rank(0)), raised=(*raised(rank(0)).raised, helper))).type == "ValueError"


def test_a_collective_of_a_helper_thread_does_not_hide_the_main_thread_at_work() -> None:
    opened = Call("all_reduce", NOW_NS - 9 * SECOND, 0, stack_of("uploader.py:5 run"), group="1")
    evidence = busy(0, "train.py:20 augment")
    evidence = replace(
        evidence,
        calls=(*evidence.calls, opened),
        threads=(*main_thread("train.py:20 augment", is_active=True), thread(C10D, "uploader.py:5 run")),
    )

    assert rank_state_of(evidence).kind == "busy"


def test_an_idle_rank_in_a_barrier_of_its_own_making_is_still_waiting() -> None:
    evidence = in_call(0, "monitored_barrier", "train.py:30 main", samples=samples(cpu=0.01))

    assert rank_state_of(evidence).op == "monitored_barrier"


def test_an_ended_rank_is_where_it_left() -> None:
    state = rank_state_of(ended(rank(0, gradients(3)), "sys_exit", code=0, at=["train.py:44 stop", "train.py:60 main"]))

    assert (state.kind, state.frame.line, len(state.stack)) == ("ended", 44, 2)


def test_a_lost_connection_in_the_wait_of_an_async_collective_is_a_wait_in_it() -> None:
    evidence = returned(waiting(1, "reduce_scatter_tensor", "optim.py:16 reduce"))
    lost = raised(evidence, "RuntimeError", "Connection closed by peer [127.0.0.1]:4", "optim.py:26 compute")

    state = rank_states(job(finished(0), lost))[1]

    assert (state.kind, state.op, state.is_echo) == ("waiting", "reduce_scatter_tensor", True)
    assert state.frame is not None and state.frame.line == 26


def test_a_record_of_before_does_not_say_where_a_rank_waits_now() -> None:
    """Torch's record was read while the rank waited in a barrier, and the rank died before it was read again."""
    barrier = waiting(0, "barrier", "train.py:3 main")
    since = calls_of([Slot("barrier", at="train.py:3 main"), *did(times=2, at="train.py:9 train")], ended_ns=NOW_NS - SECOND)
    now = in_call(0, "all_reduce", "train.py:9 train", after=[])
    opened = replace(now.calls[-1], started_ns=NOW_NS - SECOND // 2)
    evidence = replace(barrier, calls=(*barrier.calls[:-1], *since, opened))

    state = rank_states(job(evidence, waiting(1)))[0]

    assert (state.op, state.frame and state.frame.line) == ("all_reduce", 9)
