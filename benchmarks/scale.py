"""How long `rankwise explain` takes, and how much memory, on the evidence of 4,096 ranks with 2,000 collectives each."""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from array import array
from dataclasses import replace
from pathlib import Path

from machine import machine_facts

from rankwise.evidence.collectives import CollectiveLog, Signature
from rankwise.evidence.folder import save_evidence
from rankwise.evidence.records import Call, Frame, Init, JobEvidence, RankEvidence, Sample, Thread

NUM_RANKS, NUM_COLLECTIVES, CULPRIT = 4096, 2000, 1234
MAX_SECONDS, MAX_MIB = 10.0, 1024
REPEATS = 3
RESULT = Path(__file__).parent / "results" / "scale.md"
SECOND = 10**9
START = 1_700_000_000 * SECOND
SCRIPT = "/home/user/job/train.py"
SOURCE = """import torch.distributed as dist


def train(model, batches, optimizer):
    for batch in batches:
        if batch.isnan().any():
            continue
        model(batch).sum().backward()
        optimizer.step()
    dist.barrier()


if __name__ == "__main__":
    train(*build())
"""
BATCH, BACKWARD, BARRIER = ((Frame(SCRIPT, line, "train"), Frame(SCRIPT, 14, "<module>")) for line in (5, 8, 10))
GRADIENTS, EPOCH_END = Signature("0", "all_reduce", (6_553_600,), "float32"), Signature("0", "barrier")
SCENES = {
    "barrier": "it waits in the barrier behind the loop, the others in all_reduce",
    "elsewhere": "it is in no collective, the others wait in all_reduce",
}


def main() -> int:
    rows = [measure(scene) for scene in SCENES]
    text = report(rows)
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(text)
    print(text)
    return 0 if all(seconds < MAX_SECONDS and mib < MAX_MIB for _, _, seconds, mib, _ in rows) else 1


def measure(scene: str) -> tuple[str, float, float, float, str]:
    """The scene, the MiB of its evidence, and of `explain` in fresh processes: median seconds, highest MiB, and the first line it says."""
    with tempfile.TemporaryDirectory(prefix="scale-") as name:
        folder = Path(name)
        print(f"writing the evidence of {NUM_RANKS:,} ranks: {SCENES[scene]}", flush=True)
        save_evidence(folder / "evidence", synthetic_job(scene))
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 2**20
        runs = [explain(folder) for _ in range(REPEATS)]
    return SCENES[scene], size, statistics.median(run[0] for run in runs), max(run[1] for run in runs), runs[0][2]


def explain(folder: Path) -> tuple[float, float, str]:
    """Seconds from start to end of a fresh `rankwise explain`, its peak resident MiB, and the first line of its verdict."""
    read_end, write_end = os.pipe()
    started = time.perf_counter()
    pid = os.posix_spawn(
        sys.executable,
        [sys.executable, "-m", "rankwise", "explain", str(folder)],
        os.environ,
        file_actions=[(os.POSIX_SPAWN_DUP2, write_end, 1)],
    )
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        said = pipe.read().decode()
    _, status, usage = os.wait4(pid, 0)
    seconds = time.perf_counter() - started
    if status:
        raise SystemExit(f"rankwise explain failed:\n{said}")
    return seconds, usage.ru_maxrss / 1024, " ".join(said.split(";")[0].split())


def synthetic_job(scene: str) -> JobEvidence:
    """One rank did one backward less than the others, and all of them stand still in the last one."""
    now = START + NUM_COLLECTIVES * SECOND // 10 + 30 * SECOND
    usual = make_log([GRADIENTS] * NUM_COLLECTIVES)
    odd = make_log([GRADIENTS] * (NUM_COLLECTIVES - 1) + [EPOCH_END] * (scene == "barrier"))
    odd.done[-1] = scene == "elsewhere"
    return JobEvidence(
        command=("torchrun", "train.py"),
        started_ns=START - SECOND,
        now_ns=now,
        world_size=NUM_RANKS,
        stall_after_s=10.0,
        ranks={rank: make_rank(rank, odd if rank == CULPRIT else usual, now) for rank in range(NUM_RANKS)},
        sources={SCRIPT: SOURCE},
        cwd=str(Path(SCRIPT).parent),
    )


def make_log(whats: list[Signature]) -> CollectiveLog:
    log = CollectiveLog()
    for i, what in enumerate(whats):
        site, origin = (BACKWARD, "backward") if what is GRADIENTS else (BARRIER, "user")
        log.add(i + 1, what, START + i * SECOND // 10, i + 1 < len(whats), site, origin)
    return log


def make_rank(rank: int, log: CollectiveLog, now: int) -> RankEvidence:
    """The moments differ from rank to rank; the rest is as in a real job, with the last few calls instead of all."""
    own = replace(log, created_ns=array("Q", [t + rank * 100 for t in log.created_ns]))
    last = own[len(own) - 1]
    stack = BATCH if last.done else own.stack_of(last)
    closed = [Call("backward", t, t + SECOND // 20, BACKWARD) for t in own.created_ns[-8:-1]]
    final = Call("backward" if last.what == GRADIENTS else "barrier", last.created_ns, last.done * (last.created_ns + 1000), stack)
    steps = sum(what == GRADIENTS for what in (own[i].what for i in range(len(own) - 2, len(own)))) + len(own) - 2
    return RankEvidence(
        rank=rank,
        pid=10_000 + rank,
        host=f"node-{rank // 8:03}",
        env={
            "RANK": str(rank),
            "WORLD_SIZE": str(NUM_RANKS),
            "LOCAL_RANK": str(rank % 8),
            "MASTER_ADDR": "node-000",
            "MASTER_PORT": "29500",
        },
        script=SCRIPT,
        started_ns=START - SECOND,
        torch="2.13.0",
        inits=(Init(rank, NUM_RANKS, "nccl", "env://", "node-000", 29500, 600.0, START - SECOND // 2, START - SECOND // 4, BARRIER[1:]),),
        calls=(*closed, final),
        collectives=own,
        counts={"forward": steps, "backward": steps, "next_batch": NUM_COLLECTIVES},
        threads=(Thread("MainThread", stack, is_main=True),),
        threads_ns=now,
        samples=tuple(Sample(now - (19 - i) * SECOND // 5, "S", 300.0, 4 << 30, 10_000, 1 << 30, 1 << 20) for i in range(20)),
        last_progress_ns=last.created_ns,
    )


def report(rows: list[tuple[str, float, float, float, str]]) -> str:
    lines = [
        "# Diagnosing a large job",
        "",
        f"`rankwise explain` in a fresh process, on synthetic evidence of {NUM_RANKS:,} ranks with {NUM_COLLECTIVES:,} collectives each.",
        f"Rank {CULPRIT:,} skipped one of them. Median seconds of {REPEATS} runs, and the highest peak of resident memory.",
        f"Required: under {MAX_SECONDS:g} s and {MAX_MIB:,} MiB.",
        "",
        "| scene | evidence | seconds | peak memory | verdict |",
        "|---|---|---|---|---|",
        *(f"| {scene} | {size:.0f} MiB | {seconds:.1f} | {mib:.0f} MiB | {said} |" for scene, size, seconds, mib, said in rows),
        "",
        f"{machine_facts()}. Written by `benchmarks/scale.py`.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
