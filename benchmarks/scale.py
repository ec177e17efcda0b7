"""How long `rankwise explain` takes, and how much memory, on the evidence of 4,096 ranks with 2,000 collectives each."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from array import array
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from machine import machine_facts

from rankwise.evidence.collective_log import CollectiveLog, Signature
from rankwise.evidence.records import Call, Frame, Init, JobEvidence, RankEvidence, Sample, Thread
from rankwise.evidence.run_folder import save_evidence

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


@dataclass(frozen=True)
class Run:
    """One `rankwise explain` in a fresh process: what it took, and the beginning of what it said."""

    wall_s: float
    cpu_s: float
    peak_mib: float
    verdict: str


def main() -> int:
    lines, is_met = [], True
    for reported, where in SCENES.items():
        print(f"writing the evidence of {NUM_RANKS:,} ranks: {where}", flush=True)
        size_mib, runs = measure(reported)
        wall_s, cpu_s, mib = median(run.wall_s for run in runs), median(run.cpu_s for run in runs), max(run.peak_mib for run in runs)
        lines.append(f"| {where} | {size_mib:.0f} MiB | {cpu_s:.1f} | {wall_s:.1f} | {mib:.0f} MiB | {runs[0].verdict} |")
        is_met = is_met and cpu_s < MAX_SECONDS and mib < MAX_MIB
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(report(lines))
    print(report(lines))
    return 0 if is_met else 1


def measure(reported: str) -> tuple[float, list[Run]]:
    """The MiB of the evidence, and some runs of `explain` on it."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        save_evidence(folder / "evidence", synthetic_job(reported))
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        return size / 2**20, [explain(folder) for _ in range(REPEATS)]


def explain(folder: Path) -> Run:
    started = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "rankwise", "explain", str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    said = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"rankwise explain ended with {process.returncode}:\n{said}")
    verdict = " ".join(said.split(";")[0].split())
    return Run(time.perf_counter() - started, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, verdict)


def synthetic_job(reported: str) -> JobEvidence:
    """One rank did one backward less than the others, and all of them stand still in the last one."""
    now = START + NUM_COLLECTIVES * SECOND // 10 + 30 * SECOND
    usual = make_log([GRADIENTS] * NUM_COLLECTIVES)
    odd = make_log([GRADIENTS] * (NUM_COLLECTIVES - 1) + [EPOCH_END] * (reported == "barrier"))
    odd.done[-1] = reported == "elsewhere"
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


def report(lines: list[str]) -> str:
    parts = [
        "# Diagnosing a large job",
        "",
        f"`rankwise explain` in a fresh process, on synthetic evidence of {NUM_RANKS:,} ranks with {NUM_COLLECTIVES:,} collectives each,",
        f"of which rank {CULPRIT:,} skipped one. Medians of {REPEATS} runs, and the highest peak of resident memory. Required: under",
        f"{MAX_SECONDS:g} s and {MAX_MIB:,} MiB. It uses one core: CPU seconds are what it takes where nobody else does.",
        "",
        "| the rank that skipped one | evidence | CPU seconds | seconds | peak memory | verdict |",
        "|---|---|---|---|---|---|",
        *lines,
        "",
        f"{machine_facts()}. Written by `benchmarks/scale.py`.",
    ]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    sys.exit(main())
