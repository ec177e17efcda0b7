"""Ranks that crashed, were killed or left: the first one that is no echo, with its own words."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest

from rankwise.causes import load_cause
from rankwise.diagnose import diagnose
from rankwise.errors import StartError
from rankwise.evidence.records import Frame, HostFacts, JobEvidence, RankEvidence, SentSignal
from rankwise.findings import Place
from tests.diagnose.jobs import (
    C10D,
    HOME,
    NOW_NS,
    PYTHON,
    TORCH,
    alarms,
    before_init,
    busy,
    cast,
    did,
    echo,
    elsewhere,
    ended,
    expect,
    finished,
    in_backward,
    job,
    killed,
    model,
    new_group,
    numbered,
    others,
    raised,
    rank,
    root,
    samples,
    stack_of,
    terminated,
    waiting,
    waiting_ranks,
    worker,
)

PLACES = [(2, [1]), (3, [0]), (4, [3]), (8, [4])]
UNUSED = "Expected to have finished reduction in the prior iteration before starting a new one. This error indicates that your module has …"


def crashed(culprits: list[int], world_size: int, fall, **facts) -> JobEvidence:
    """`fall(rank)` for the culprits; the others lost their connection a moment later and torchrun reports failure."""
    return job(*cast(culprits, world_size, fall, lambda r: echo(waiting(r))), **{"exit_code": 1, **facts})


# -- RW401: exceptions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("world_size", "culprits"), [*PLACES, (4, [1, 2])])
def test_rw401_the_first_exception_and_not_its_echoes(world_size: int, culprits: list[int]) -> None:
    found = diagnose(crashed(culprits, world_size, lambda r: raised(waiting(r), "ValueError", "bad sample 17", "data.py:9 load")))

    assert len(found) == 1
    expect(found[0], "RW401", culprits, "ValueError: bad sample 17", "data.py:9", at="data.py:9")
    assert sorted(waiting_ranks(found[0])) == others(culprits, world_size)


def test_rw401_by_time_even_if_the_later_one_has_a_lower_rank() -> None:
    evidence = job(
        raised(waiting(0), "KeyError", "'a'", "train.py:5 main", ago_s=5),
        raised(waiting(1), "ValueError", "b", "train.py:6 main", ago_s=7),
        exit_code=1,
    )

    expect(root(evidence), "RW401", [1], "ValueError")


def test_rw401_while_the_others_still_wait_for_it() -> None:
    evidence = job(waiting(0), raised(elsewhere(1)), waiting(2))

    found = root(evidence)

    expect(found, "RW401", [1], "ValueError: bad sample")
    assert waiting_ranks(found) == [0, 2]


def test_rw401_with_the_worker_line_of_a_dataloader_exception() -> None:
    message = (
        "Caught ValueError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n"
        f'  File "{TORCH}/utils/data/_utils/worker.py", line 349, in _worker_loop\n    data = fetcher.fetch(index)\n'
        f'  File "{HOME}/data.py", line 33, in __getitem__\n    raise ValueError("crop 7")\nValueError: crop 7\n'
    )

    found = root(crashed([1], 3, lambda r: raised(elsewhere(r), "ValueError", message, "train.py:8 train")))

    expect(found, "RW401", [1], "crop 7", at="data.py:33")


def test_rw401_an_exception_that_a_crash_in_the_teardown_follows() -> None:
    for number in (signal.SIGSEGV, signal.SIGABRT):
        found = root(crashed([1], 3, lambda r, n=number: raised(elsewhere(r), kind="signal", signal=int(n), code=None)))

        expect(found, "RW401", [1], "ValueError: bad sample")


def test_rw401_an_exception_that_os_exit_follows() -> None:
    expect(root(crashed([0], 3, lambda r: raised(elsewhere(r), kind="os_exit"))), "RW401", [0], "ValueError")


def test_rw401_an_own_network_error_is_no_echo() -> None:
    def fall(r: int) -> RankEvidence:
        return raised(
            elsewhere(r), "ConnectionRefusedError", "[Errno 111] Connection refused", [f"{PYTHON}/socket.py:833 create", "log.py:4 push"]
        )

    expect(root(crashed([0], 3, fall)), "RW401", [0], "ConnectionRefusedError", at="log.py:4")


def test_rw401_before_the_start_says_so() -> None:
    evidence = job(
        raised(before_init(0), "ImportError", "No module named 'apex'", "train.py:1"),
        raised(before_init(1), "ImportError", "No module named 'apex'", "train.py:1"),
        exit_code=1,
    )

    found = root(evidence)

    assert found.code in ("RW401", "RW110")
    assert "before init_process_group" in found.summary and "apex" in found.summary


def test_an_exception_without_words_is_told_without_a_loose_end() -> None:
    found = root(crashed([1], 2, lambda r: raised(elsewhere(r), "AssertionError", "", "train.py:8 train")))

    assert "AssertionError at train.py:8" in found.summary


def test_only_echoes_are_never_called_the_root() -> None:
    evidence = job(echo(waiting(0)), echo(waiting(1)), exit_code=1)

    found = root(evidence)

    assert found.code not in ("RW401", "RW402", "RW403")
    assert not found.certain


# -- RW402: left --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "words"), [("sys_exit", "sys.exit(3)"), ("os_exit", "os._exit(3)")])
@pytest.mark.parametrize(("world_size", "culprits"), PLACES)
def test_rw402_a_rank_that_leaves_with_a_code(kind: str, words: str, world_size: int, culprits: list[int]) -> None:
    found = root(crashed(culprits, world_size, lambda r: ended(elsewhere(r), kind, code=3, at="train.py:30 stop")))

    expect(found, "RW402", culprits, words, at="train.py:30")


@pytest.mark.parametrize(("kind", "words"), [("sys_exit", "sys.exit(0)"), ("os_exit", "os._exit(0)"), ("finished", "finished")])
@pytest.mark.parametrize("recorder", [True, False])
def test_rw402_a_rank_that_leaves_in_peace_while_others_wait(kind: str, words: str, recorder: bool) -> None:
    gone = ended(rank(2, recorder=recorder), kind, code=0, at="train.py:30 stop")
    evidence = job(waiting(0, recorder=recorder), waiting(1, recorder=recorder), gone)

    found = root(evidence)

    expect(found, "RW402", [2], words, "all_reduce", at="train.py:30")
    assert waiting_ranks(found) == [0, 1]


# -- RW403, RW404, RW409: killed ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("world_size", "culprits"), PLACES)
def test_rw403_killed_by_somebody(world_size: int, culprits: list[int]) -> None:
    growing = tuple(replace(s, rss=(1 + i) << 30) for i, s in enumerate(samples()))

    found = root(crashed(culprits, world_size, lambda r: killed(elsewhere(r, samples=growing))))

    expect(found, "RW403", culprits, "SIGKILL")
    assert "1.0 GiB" in found.why and "9.0 GiB" in found.why, "the memory curve"


def test_rw403_with_the_line_that_sent_the_signal() -> None:
    sent = SentSignal(by=4201, target=4201, signal=9, time_ns=NOW_NS, stack=stack_of("train.py:17 give_up"))

    found = root(crashed([1], 3, lambda r: killed(elsewhere(r, signals=(sent,)), by="itself")))

    expect(found, "RW403", [1], "SIGKILL", "killed itself", at="train.py:17")


def test_rw403_gone_without_a_trace_is_not_certain() -> None:
    found = root(crashed([2], 4, lambda r: ended(elsewhere(r), "vanished")))

    expect(found, "RW403", [2], "without a trace", certain=False, deadlock=False)


@pytest.mark.parametrize(("code", "cause"), [(None, "RW403"), (1, "RW402")], ids=["killed or not", "it left with a code"])
def test_a_rank_that_vanished_after_another_had_finished_in_peace_is_told(code: int | None, cause: str) -> None:
    found = root(job(finished(0, ago_s=30), ended(elsewhere(1), "vanished", code=code), exit_code=1))

    assert (found.code, [place.rank for place in found.culprits]) == (cause, [1])


@pytest.mark.parametrize("proof", [{"pid": 4201}, {"cgroup": True}])
def test_rw404_killed_for_want_of_memory_where_that_is_proven(proof) -> None:
    found = root(crashed([1], 3, lambda r: killed(elsewhere(r)), hosts=(HostFacts("node-a", oom_kills=(proof,)),)))

    expect(found, "RW404", [1], "out of memory", "SIGKILL")


@pytest.mark.parametrize("elsewhere_killed", [{"pid": 1}, {}])
def test_somebody_elses_death_by_memory_proves_nothing(elsewhere_killed) -> None:
    found = root(crashed([1], 3, lambda r: killed(elsewhere(r)), hosts=(HostFacts("node-a", oom_kills=(elsewhere_killed,)),)))

    assert found.code == "RW403"


def test_a_memory_limit_hit_on_another_host_proves_nothing() -> None:
    found = root(crashed([1], 3, lambda r: killed(elsewhere(r)), hosts=(HostFacts("node-b", oom_kills=({"cgroup": True},)),)))

    assert found.code == "RW403"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_rw409_ended_from_outside(number: int) -> None:
    found = root(job(*[killed(elsewhere(r), number, ago_s=5 - r / 100) for r in range(3)], exit_code=143))

    assert found.code == "RW409"
    assert signal.Signals(number).name in found.summary
    assert found.certain


def test_rw409_ctrl_c() -> None:
    found = root(job(*[raised(waiting(r), "KeyboardInterrupt", "", [C10D, "train.py:10 train"]) for r in range(3)], exit_code=130))

    assert found.code == "RW409"
    assert "SIGINT" in found.summary or "Ctrl-C" in found.summary


def test_rw409_after_another_rank_had_finished_in_peace() -> None:
    found = root(job(finished(0, ago_s=30), killed(elsewhere(1), signal.SIGTERM), exit_code=143))

    assert (found.code, [place.rank for place in found.culprits]) == ("RW409", [1])


def test_ranks_that_the_launcher_ended_are_never_the_root() -> None:
    evidence = job(terminated(elsewhere(0)), raised(elsewhere(1)), terminated(waiting(2)), terminated(busy(3)), exit_code=1)

    expect(root(evidence), "RW401", [1], "ValueError")


# -- RW405, RW406: native crashes, shared memory ------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL])
def test_rw405_a_crash_in_native_code(number: signal.Signals) -> None:
    found = root(crashed([1], 3, lambda r: killed(elsewhere(r), number, at="ops.py:12 gather")))

    expect(found, "RW405", [1], "native code", number.name, at="ops.py:12")


def test_rw406_by_its_message() -> None:
    hint = "It is possible that dataloader's workers are out of shared memory."
    variants = [
        ("RuntimeError", f"unable to write to file </torch_77_1>: No space left on device (28). {hint}"),
        (
            "RuntimeError",
            f"DataLoader worker (pid 99) is killed by signal: Bus error. {hint}",
        ),
        ("RuntimeError", "unable to open shared memory object </torch_1> in read-write mode"),
        ("OSError", "[Errno 28] No space left on device: '/dev/shm/torch_1'"),
    ]
    for name, text in variants:
        found = root(crashed([2], 4, lambda r, n=name, t=text: raised(elsewhere(r), n, t), hosts=(HostFacts("node-a", shm_free=4096),)))

        assert found.code in ("RW406", "RW407") if "killed by signal" in text else found.code == "RW406", text
        assert [place.rank for place in found.culprits] == [2]


def test_rw406_a_bus_error_with_a_full_shm() -> None:
    found = root(crashed([1], 3, lambda r: killed(elsewhere(r), signal.SIGBUS), hosts=(HostFacts("node-a", shm_free=1 << 20),)))

    expect(found, "RW406", [1], "SIGBUS", "/dev/shm")


def test_rw204_gloo_aborts_a_rank_that_is_sent_more_than_it_expects() -> None:
    said = "[enforce fail at pair.cc:456] op.preamble.length <= op.nbytes. 384 vs 256. Received data size doesn't match expected size."
    crashed = killed(waiting(1, "all_to_all_single", "train.py:7 dispatch"), signal.SIGABRT)
    assert crashed.ended is not None
    found = root(job(waiting(0, "all_to_all_single", "train.py:7 dispatch"), replace(crashed, ended=replace(crashed.ended, said=said))))

    expect(found, "RW204", [1], "all_to_all_single", "sizes", certain=False)
    assert "384 vs 256" in found.why


def test_gloo_aborts_a_rank_in_a_group_whose_members_are_out_of_step() -> None:
    """Ranks 1 and 3 are in groups of their own: what counts is what the members of the failed call's group did."""
    said = "[enforce fail at pair.cc:456] op.preamble.length <= op.nbytes. 384 vs 4. Received data size doesn't match expected size."
    groups = tuple(new_group(*members, name=str(name)) for name, members in enumerate(((0, 1), (2, 3), (0, 2), (1, 3)), 1))
    past = [did(group="1", at="tp.py:4 f"), did(group="2", at="tp.py:4 f"), did(group="3", at="dp.py:7 sync")]
    crashed = killed(waiting(0, "all_reduce", "train.py:9 log", group="3", after=[*past[0], *past[2]] * 3, groups=groups), signal.SIGABRT)
    assert crashed.ended is not None
    evidence = job(
        replace(crashed, ended=replace(crashed.ended, said=said)),
        waiting(1, "all_reduce", "tp.py:4 f", group="1", groups=groups),
        waiting(2, "all_reduce", "dp.py:7 sync", group="3", after=[*[*past[1], *past[2]] * 3, *past[1]], groups=groups),
        waiting(3, "all_reduce", "tp.py:4 f", group="2", groups=groups),
    )

    expect(root(evidence), "RW208", [0], "only rank 0 called all_reduce; rank 2 waits", certain=False, at="train.py:9")


def test_rw401_says_what_the_exception_of_a_library_came_from() -> None:
    message = """Caught RuntimeError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/nibabel/loadsave.py", line 102, in load
    raise ImageFileError(f"Empty file: '{filename}'")
nibabel.filebasedimages.ImageFileError: Empty file: 'img5.nii.gz'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/monai/transforms/transform.py", line 185, in apply_transform
    raise RuntimeError(f"applying transform {transform}") from e
RuntimeError: applying transform LoadImaged
"""
    found = root(job(waiting(0), raised(busy(1), "RuntimeError", message), exit_code=1))

    expect(
        found,
        "RW401",
        [1],
        "applying transform LoadImaged",
        "it came from nibabel.filebasedimages.ImageFileError: Empty file: 'img5.nii.gz'",
    )


def test_rw405_names_no_line_where_none_is_known() -> None:
    """After the script's end faulthandler is silent: the last call is not where the process crashed."""
    found = root(job(waiting(0), killed(busy(1), signal.SIGABRT)))

    assert found.code == "RW405" and found.culprits[0].rank == 1
    assert found.summary == "rank 1 crashed in native code with SIGABRT (signal 6)"
    assert "no Python line" in found.why and not any("Python line" in step for step in found.next)

    known = root(job(finished(0), killed(busy(1), signal.SIGABRT, code=0)))
    assert known.code == "RW405" and "had come to its end" in known.why and known.culprits[0].line is None


def test_rw405_shows_what_the_exception_said() -> None:
    crashed = killed(busy(1), signal.SIGABRT)
    assert crashed.ended is not None
    found = root(job(waiting(0), replace(crashed, ended=replace(crashed.ended, said="bad_alloc in tokenizer"))))

    assert found.code == "RW405" and "bad_alloc in tokenizer" in found.why


def test_a_bus_error_with_room_in_shm_is_a_native_crash() -> None:
    assert (
        root(crashed([1], 3, lambda r: killed(elsewhere(r), signal.SIGBUS), hosts=(HostFacts("node-a", shm_free=8 << 30),))).code == "RW405"
    )


# -- RW407, RW408, RW411: known exceptions ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("DataLoader worker (pid 5000) is killed by signal: Killed. ", "killed"),
        ("DataLoader worker (pid 5000) is killed by signal: Segmentation fault. ", "killed"),
        ("DataLoader worker (pid(s) 5000, 5001) exited unexpectedly", "unexpectedly"),
    ],
)
@pytest.mark.parametrize("culprit", [0, 2])
def test_rw407_a_dataloader_worker_that_was_killed(message: str, words: str, culprit: int) -> None:
    gone = replace(worker(5000, 4200 + culprit, state=""), ended=killed(rank(0)).ended)

    found = root(crashed([culprit], 3, lambda r: raised(elsewhere(r, helpers=(gone,)), "RuntimeError", message, "train.py:8 train")))

    expect(found, "RW407", [culprit], "DataLoader worker", "5000", words)


def test_rw407_with_the_line_that_killed_it() -> None:
    sent = SentSignal(by=5000, target=5000, signal=9, time_ns=NOW_NS, stack=stack_of("data.py:7 __getitem__"))
    message = "DataLoader worker (pid 5000) is killed by signal: Killed."

    found = root(crashed([1], 3, lambda r: raised(elsewhere(r, signals=(sent,)), "RuntimeError", message)))

    expect(found, "RW407", [1], "5000", at="data.py:7")


@pytest.mark.parametrize(
    "message", ["DataLoader worker (pid(s) , ) exited unexpectedly", "DataLoader worker (pid ,) is killed by signal: X"]
)
def test_a_message_that_only_looks_like_a_killed_worker_is_survived(message: str) -> None:
    assert root(crashed([1], 3, lambda r: raised(elsewhere(r), "RuntimeError", message))).culprits[0].rank == 1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("torch.OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139 GiB"),
        ("RuntimeError", "[enforce fail at alloc_cpu.cpp:121] . DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
        ("MemoryError", ""),
        ("numpy.core._exceptions._ArrayMemoryError", "Unable to allocate 9.3 GiB for an array"),
        ("OSError", "[Errno 12] Cannot allocate memory"),
    ],
)
def test_rw408_out_of_memory_with_an_exception(name: str, message: str) -> None:
    found = root(crashed([3], 4, lambda r: raised(elsewhere(r), name, message)))

    expect(found, "RW408", [3], name.rsplit(".", 1)[-1], at="train.py:8")
    assert "memory" in found.why


def wrong_keys(missing: str, unexpected: str) -> str:
    return f"Error(s) in loading state_dict:\n\tMissing key(s) in state_dict: {missing}.\n\tUnexpected key(s) in state_dict: {unexpected}."


def test_rw411_a_checkpoint_with_the_prefix_of_the_wrapper() -> None:
    message = wrong_keys(missing='"weight"', unexpected='"module.weight"')

    found = root(job(*[raised(elsewhere(r), "RuntimeError", message, "train.py:9 restore") for r in range(4)], exit_code=1))

    expect(found, "RW411", [0, 1, 2, 3], "state_dict", at="train.py:9")
    assert "module." in found.why
    assert "rankwise.load_weights" in " ".join(found.next)


def test_rw411_a_checkpoint_of_a_compiled_model() -> None:
    message = wrong_keys(missing='"weight"', unexpected='"_orig_mod.weight"')

    found = root(job(raised(elsewhere(0), "RuntimeError", message, "train.py:9 restore"), exit_code=1))

    expect(found, "RW411", [0], "state_dict", at="train.py:9")
    assert "_orig_mod." in found.why


def test_rw411_the_other_way_round() -> None:
    message = wrong_keys(missing='"module.weight"', unexpected='"weight"')

    found = root(job(*[raised(elsewhere(r), "RuntimeError", message, "train.py:9 restore") for r in range(2)], exit_code=1))

    assert found.code == "RW411"
    assert "saved from a DDP-wrapped model" not in found.why, "here the model is wrapped and the checkpoint is not"


def test_missing_keys_of_another_architecture_are_a_plain_exception() -> None:
    message = wrong_keys(missing='"modules.0.weight", "submodule.bias"', unexpected='"submodule.weight"')

    assert root(job(raised(elsewhere(0), "RuntimeError", message), exit_code=1)).code == "RW401"


# -- RW214 … RW217: what DDP's own errors mean --------------------------------------------------------------------------------

NET, NET_LINES = numbered("""\
class Net(nn.Module):
    def __init__(self):
        self.body = nn.Linear(8, 8)
        self.aux = nn.Linear(8, 2)          # <- define

    def forward(self, x, use_aux):
        y = self.body(x)
        if use_aux:                         # <- guard
            y = y + self.aux(x)
        return y
""")
SWAP, SWAP_LINES = numbered("""\
model = DistributedDataParallel(net)
model.module.head = nn.Linear(8, 3)         # <- swap
train(model)
""")


def unused(r: int, *names: str, replaced: tuple[str, ...] = ()) -> RankEvidence:
    """A rank whose DDP forward found parameters without a gradient."""
    whole = replace(model(body__weight=(8, 8), aux__weight=(2, 8), head__weight=(2, 8)), unused=names, replaced=replaced)
    return raised(
        elsewhere(r, models=(whole,)), "RuntimeError", UNUSED, [f"{TORCH}/nn/parallel/distributed.py:1500 forward", "train.py:8 train"]
    )


def using(r: int) -> RankEvidence:
    return echo(in_backward(r, models=(model(body__weight=(8, 8), aux__weight=(2, 8), head__weight=(2, 8)),)))


@pytest.mark.parametrize("world_size", [2, 4])
def test_rw214_parameters_unused_on_all_ranks(world_size: int) -> None:
    evidence = job(*[unused(r, "aux.weight", "aux.bias") for r in range(world_size)], sources={"net.py": NET}, exit_code=1)

    found = root(evidence)

    expect(found, "RW214", list(range(world_size)), "aux.weight", "no gradient", at=f"net.py:{NET_LINES['define']}")


@pytest.mark.parametrize("culprits", [[0], [2], [3], [0, 1]])
def test_rw215_parameters_unused_on_some_ranks(culprits: list[int]) -> None:
    evidence = job(*cast(culprits, 4, lambda r: unused(r, "aux.weight"), using), sources={"net.py": NET}, exit_code=1)

    found = root(evidence)

    expect(found, "RW215", culprits, "aux.weight", "no gradient", at=f"net.py:{NET_LINES['guard']}")


def test_rw215_while_the_others_wait_for_the_missing_gradients() -> None:
    evidence = job(unused(1, "aux.weight"), in_backward(0, models=using(0).models), in_backward(2, models=using(2).models))

    found = root(evidence)

    expect(found, "RW215", [1], "aux.weight")
    assert waiting_ranks(found) == [0, 2]


def test_rw214_without_names_still_says_what_it_is() -> None:
    evidence = job(*[raised(elsewhere(r), "RuntimeError", UNUSED) for r in range(2)], exit_code=1)

    found = root(evidence)

    assert found.code in ("RW214", "RW215")
    assert "no gradient" in found.summary


def test_rw217_a_module_that_was_replaced_after_wrapping() -> None:
    evidence = job(*[unused(r, "head.weight", replaced=("head.weight",)) for r in range(3)], sources={"train.py": SWAP}, exit_code=1)

    found = root(evidence)

    expect(found, "RW217", [0, 1, 2], "head.weight", "replaced after DDP", at=f"train.py:{SWAP_LINES['swap']}")


# -- healthy ends -------------------------------------------------------------------------------------------------------------

HEALTHY = {
    "all have finished": [finished(r) for r in range(4)],
    "all have left by sys.exit(0)": [ended(rank(r), "sys_exit", code=0) for r in range(4)],
    "all have left by os._exit(0)": [ended(rank(r), "os_exit", code=0) for r in range(4)],
    "one after the other": [finished(r, ago_s=30 - 7 * r) for r in range(4)],
    "seen only from outside": [ended(rank(r), "vanished", code=0) for r in range(4)],
}


@pytest.mark.parametrize("kind", HEALTHY)
def test_healthy_ends_raise_no_alarm(kind: str) -> None:
    assert diagnose(job(*HEALTHY[kind], exit_code=0)) == []


def test_ranks_that_finish_at_different_times_raise_no_alarm() -> None:
    assert alarms(job(finished(0), finished(1), busy(2), elsewhere(3))) == []


def test_a_caught_exception_of_a_helper_thread_is_no_crash() -> None:
    died = replace(raised(rank(1)).raised[0], thread="uploader")

    assert diagnose(job(finished(0), replace(finished(1), raised=(died,)), exit_code=0)) == []


def test_frames_of_the_users_packages_are_shown_when_there_are_no_others() -> None:
    stack = (Frame("/v/lib/python3.11/site-packages/trainer/loop.py", 9, "fit"), Frame(f"{TORCH}/nn/modules/module.py", 1, "__call__"))
    evidence = raised(elsewhere(1))
    evidence = replace(evidence, raised=(replace(evidence.raised[0], stack=stack),))

    assert root(job(echo(waiting(0)), evidence, exit_code=1)).culprits[0].line == 9


# -- what session() found itself ----------------------------------------------------------------------------------------------


def told_by_session(rank: int, code: str, stage: str, place: Place) -> RankEvidence:
    finding = load_cause(code).finding("what session() found", certain=True, culprits=(place,), stage=stage)
    evidence = raised(before_init(rank), "rankwise.errors.StartError", str(StartError(finding)))
    return replace(evidence, raised=(replace(evidence.raised[0], finding=finding),))


def test_what_session_told_is_the_verdict_and_who_knows_more_comes_first() -> None:
    missing = told_by_session(0, "RW101", "registration", Place(1))
    unresolved = told_by_session(1, "RW106", "address", Place(1, "node-b", 7))
    found = root(job(missing, unresolved, exit_code=1))

    assert (found.code, found.name, found.stage) == ("RW106", "address-unresolvable", "address")
    assert [(place.rank, place.host, place.pid) for place in found.culprits] == [(1, "node-b", 7)]


def test_a_start_error_that_names_no_cause_is_an_exception_like_any_other() -> None:
    ranks = [raised(before_init(r), "mine.StartError", "RW777 made up") for r in range(2)]

    assert root(job(*ranks, exit_code=1)).code == "RW401"
