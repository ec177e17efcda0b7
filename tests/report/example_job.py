"""Synthetic jobs for the report's tests: a skipped collective at any world size, a crash, and evidence meant to do harm."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from rankwise.causes import load_cause
from rankwise.evidence.collective_log import CollectiveLog, Signature
from rankwise.evidence.records import Call, Ended, Frame, Helper, Init, JobEvidence, NewGroup, Raised, RankEvidence, Sample, Stack, Thread
from rankwise.findings import Finding, Place, Wait
from rankwise.report.verdict import verdict_dict

START_NS = 1_790_000_000_000_000_000
NOW_NS = START_NS + 94_200_000_000
PROJECT = "/home/ada/projects/segmenter"
TRAIN = f"{PROJECT}/train.py"
DATA = f"{PROJECT}/data/loading.py"
LIBRARY = "/home/ada/venv/lib/python3.11/site-packages"

TRAIN_SOURCE = """\
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from data.loading import make_loader
from model import Segmenter


def train_epoch(model, loader, optimizer, epoch):
    for step, (images, masks) in enumerate(loader):
        loss = model(images, masks)
        if not torch.isfinite(loss):
            print(f"step {step}: loss is {loss.item()}, skipping")
            continue
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 50 == 0:
            log_mean(loss)


def log_mean(loss):
    dist.all_reduce(loss.detach(), op=dist.ReduceOp.AVG)


def main():
    dist.init_process_group("gloo")
    model = DDP(Segmenter())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    loader = make_loader("train", batch_size=16)
    for epoch in range(12):
        train_epoch(model, loader, optimizer, epoch)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
"""
DATA_SOURCE = """\
from torch.utils.data import DataLoader


class Crops:
    def __init__(self, files):
        self.files = files

    def __getitem__(self, index):
        return load_crop(self.files[index])


def make_loader(split, batch_size):
    return DataLoader(Crops(list_files(split)), batch_size=batch_size, num_workers=2)
"""

_MAIN: Stack = (Frame(TRAIN, 33, "main"), Frame(TRAIN, 38, "<module>"))
BACKWARD: Stack = (
    Frame(f"{LIBRARY}/torch/autograd/graph.py", 829, "_engine_run_backward"),
    Frame(f"{LIBRARY}/torch/autograd/__init__.py", 354, "backward"),
    Frame(f"{LIBRARY}/torch/_tensor.py", 630, "backward"),
    Frame(TRAIN, 16, "train_epoch"),
    *_MAIN,
)
NEXT_BATCH: Stack = (
    Frame("/usr/lib/python3.11/selectors.py", 415, "select"),
    Frame("/usr/lib/python3.11/multiprocessing/connection.py", 930, "wait"),
    Frame(f"{LIBRARY}/torch/utils/data/dataloader.py", 1310, "_try_get_data"),
    Frame(f"{LIBRARY}/torch/utils/data/dataloader.py", 708, "__next__"),
    Frame(TRAIN, 11, "train_epoch"),
    *_MAIN,
)
LOAD_CROP: Stack = (
    Frame(DATA, 9, "__getitem__"),
    Frame(f"{LIBRARY}/torch/utils/data/_utils/fetch.py", 52, "fetch"),
    Frame(f"{LIBRARY}/torch/utils/data/_utils/worker.py", 349, "_worker_loop"),
)
BUCKETS = (Signature("0", "all_reduce", (1048576,), "float32"), Signature("0", "all_reduce", (262656,), "float32"))
BUFFERS = Signature("0", "broadcast", (512,), "float32", peer=0)
LOSS = Signature("0", "all_reduce", (), "float32", reduce_op="AVG")


def skipped_collective(world_size: int = 4, num_slots: int = 243, culprit: int | None = None) -> tuple[dict[str, Any], JobEvidence]:
    """One rank skipped a backward and now waits for a batch; everyone else waits in DDP's all_reduce."""
    culprit = culprit if culprit is not None else min(world_size - 1, 31)
    ranks = {rank: _rank(rank, is_culprit=rank == culprit, num_slots=num_slots, world_size=world_size) for rank in range(world_size)}
    others = [rank for rank in ranks if rank != culprit]
    finding = load_cause("RW201").finding(
        f"rank {culprit} never called all_reduce #{num_slots}, which {len(others)} other rank{'s' * (len(others) > 1)} are waiting in",
        certain=True,
        culprits=(Place(culprit, _host(culprit), 4200 + culprit, "train.py", 15, "train_epoch"),),
        waiting=tuple(Wait(rank, "all_reduce", "default", num_slots, "train.py", 16, "train_epoch") for rank in others),
        why="train.py:13 skips the step when the local loss is not finite, so ranks can disagree; "
        "the others are in DDP's gradient all_reduce of the same step",
        deadlock=True,
    )
    slow = load_cause("RW307").finding(
        f"a DataLoader worker of rank {culprit} has been in one sample for 41 s",
        certain=False,
        culprits=(Place(culprit, _host(culprit), 4900, "data/loading.py", 9, "__getitem__"),),
        why="the sample at data/loading.py:9 is still being read; the file system may be slow",
    )
    verdict = verdict_dict("hung", 70, world_size, 94.2, 8.4, [finding, slow])
    return verdict, _job(ranks, exit_code=70)


def crash(world_size: int = 4) -> tuple[dict[str, Any], JobEvidence]:
    """Rank 1 raises, the others see their connection close."""
    ranks = {rank: _rank(rank, is_culprit=False, num_slots=90, world_size=world_size, is_alive=rank != 1) for rank in range(world_size)}
    stack: Stack = (Frame(TRAIN, 24, "log_mean"), Frame(TRAIN, 20, "train_epoch"), *_MAIN)
    text = f"Traceback (most recent call last):\n  File \"{TRAIN}\", line 24, in log_mean\nKeyError: 'crop_0713'\n"
    boom = Raised("KeyError", "'crop_0713'", stack, NOW_NS - 3_000_000_000, text=text)
    ranks[1] = replace(ranks[1], raised=(boom,), ended=Ended("exception", NOW_NS - 2_900_000_000, code=1), threads=())
    finding = load_cause("RW401").finding(
        "rank 1 raised KeyError: 'crop_0713', and the other ranks lost their connection to it",
        certain=True,
        culprits=(Place(1, "node-a", 4201, "train.py", 24, "log_mean"),),
        why="it was the first exception of the job; the errors on the other ranks are its echo",
        next=("see logs/rank-1.log",),
    )
    return verdict_dict("crashed", 1, world_size, 94.2, None, [finding]), _job(ranks, exit_code=1)


def hostile(payload: str) -> tuple[dict[str, Any], JobEvidence]:
    """The payload in every string that evidence can carry."""
    file = f"/tmp/{payload}.py"
    stack: Stack = (Frame(file, 3, payload), Frame(f"{LIBRARY}/{payload}.py", 9, payload))
    signature = Signature(payload, payload, (1,), payload, reduce_op=payload)
    log, other = CollectiveLog(), CollectiveLog()
    log.add(1, signature, START_NS, False, stack)
    other.add(1, Signature(payload, payload * 2, (2,), payload), START_NS, False, stack)
    ended = Ended(payload, NOW_NS, signal=9, by=payload)
    raised = Raised(payload, payload, stack, NOW_NS, text=payload)
    call = Call(payload, START_NS, 0, stack, group=payload, dtype=payload)
    helper = Helper(9, payload, 1, (Thread(payload, stack, is_main=True),), payload, True, raised, ended, payload, True)
    thread = Thread(payload, stack, is_main=True)
    common: dict[str, Any] = {"host": payload, "torch": payload, "blind": (payload,), "script": payload, "env": {payload: payload}}
    ranks = {
        0: RankEvidence(0, 1, collectives=log, threads=(thread,), calls=(call,), helpers=(helper,), **common),
        1: RankEvidence(1, 2, collectives=other, threads=(thread,), raised=(raised,), ended=ended, alive=False, **common),
        2: RankEvidence(2, 3, groups=(NewGroup(payload, (0, 1), 1, 2),), calls=(Call("send", 1, 0, stack, group=payload),), **common),
    }
    finding = Finding(
        payload,
        payload,
        "error",
        True,
        payload,
        culprits=(Place(0, payload, 1, file, 3, payload),),
        waiting=(Wait(1, payload, payload, 1, file, 3, payload),),
        why=payload,
        next=(payload,),
    )
    verdict = verdict_dict("hung", 70, 3, 1.0, 1.0, [finding])
    verdict["outcome"] = payload
    job = JobEvidence(
        command=(payload, payload),
        started_ns=START_NS,
        now_ns=NOW_NS,
        world_size=3,
        stall_after_s=10,
        ranks=ranks,
        launchers=(helper,),
        sources={file: f"{payload}\n" * 6},
        lost_hosts=(payload,),
        log_tails={"rank-0": payload, payload: payload},
        launch_style=payload,
        blind=(payload,),
    )
    return verdict, job


def _rank(rank: int, *, is_culprit: bool, num_slots: int, world_size: int, is_alive: bool = True) -> RankEvidence:
    stack = NEXT_BATCH if is_culprit else BACKWARD
    rss = 812_000_000 + rank * 1_300_000
    moved_ns = NOW_NS - (41_000_000_000 if is_culprit else 8_400_000_000 + rank % 7 * 30_000_000)
    worker = Helper(4900, "python train.py", 4200 + rank, (Thread("MainThread", LOAD_CROP, True),), "D", True, is_dataloader_worker=True)
    return RankEvidence(
        rank=rank,
        pid=4200 + rank,
        host=_host(rank),
        script="train.py",
        started_ns=START_NS,
        alive=is_alive,
        torch="2.13.0+cpu",
        inits=(Init(rank, world_size, "gloo", "env://", "node-a", 29500, 1800.0, START_NS, START_NS + 900_000_000),),
        groups=(NewGroup(str(rank // 2 + 1), (rank // 2 * 2, rank // 2 * 2 + 1), START_NS, START_NS + 1),) if world_size > 2 else (),
        collectives=_log(rank, num_slots, is_culprit),
        threads=(Thread("MainThread", stack, is_main=True),),
        threads_ns=NOW_NS,
        samples=(Sample(NOW_NS, "S", 31.0, rss),),
        helpers=(worker,) if is_culprit else (),
        last_progress_ns=moved_ns,
        blind=("py-spy was refused ptrace; stacks come from faulthandler",) if rank == 0 else (),
    )


def _log(rank: int, num_slots: int, is_culprit: bool) -> CollectiveLog:
    """All ranks share one record; only the name of the group they form with their neighbour differs."""
    shared = _shared_log(num_slots, is_culprit)
    pair = Signature(str(rank // 2 + 1), "all_gather", (4, 256), "bfloat16")
    return replace(shared, signatures=[pair, *shared.signatures[1:]])


@cache
def _shared_log(num_slots: int, is_culprit: bool) -> CollectiveLog:
    """The culprit left out one step's buckets, so its log is one slot short."""
    log = CollectiveLog()
    stack = tuple(frame for frame in BACKWARD if frame.file == TRAIN)
    for seq in range(1, 9):
        log.add(seq, Signature("", "all_gather", (4, 256), "bfloat16"), NOW_NS - 90_000_000_000, True, stack)
    for seq in range(1, num_slots + (not is_culprit)):
        what = BUFFERS if seq % 12 == 1 else LOSS if seq % 12 == 0 else BUCKETS[seq % 2]
        origin = "forward" if what is BUFFERS else "user" if what is LOSS else "backward"
        log.add(seq, what, NOW_NS - 8_400_000_000 - (num_slots - seq) * 70_000_000, seq < num_slots, stack, origin)
    return log


def _job(ranks: dict[int, RankEvidence], exit_code: int) -> JobEvidence:
    return JobEvidence(
        command=("rankwise", "run", f"--nproc-per-node={len(ranks)}", "train.py", "--epochs", "12"),
        started_ns=START_NS,
        now_ns=NOW_NS,
        world_size=len(ranks),
        stall_after_s=12.0,
        ranks=ranks,
        sources={TRAIN: TRAIN_SOURCE, DATA: DATA_SOURCE},
        exit_code=exit_code,
        log_tails={f"rank-{rank}": f"epoch 3  step 40  loss 0.3{rank}\nstep 41: loss is nan, skipping\n" for rank in list(ranks)[:64]},
        blind=("the kernel log could not be read",),
    )


def _host(rank: int) -> str:
    return f"node-{'abcdefgh'[rank // 8 % 8]}"
