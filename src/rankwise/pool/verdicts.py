"""The pool's own errors, each with its finding."""

from __future__ import annotations

import re

from rankwise.errors import RankwiseError, headline
from rankwise.findings import Finding
from rankwise.pool.faults import Death
from rankwise.sizes import bytes_text


class PoolError(RankwiseError):
    """Base of what a pool raises on purpose."""


class PoolFull(PoolError):
    """No room for one more task: try later, or somewhere else."""


class PoolClosed(PoolError):
    """The pool is closed, or was before the task could run."""


class DeadlineExceeded(PoolError, TimeoutError):
    """The task's deadline passed before its result was there."""


class Quarantined(PoolError):
    """The input kills workers; it is not tried again."""


class TaskHung(PoolError, TimeoutError):
    """The task ran past its model's limit; its worker was ended."""


class ModelUnavailable(PoolError):
    """The model cannot be built, or does not fit."""


class MissingMainGuard(PoolError):
    """A script that starts a pool was imported by a worker of that pool."""


def pool_full(model: str, waiting: int, what: str) -> PoolFull:
    return PoolFull(
        Finding(
            "RW801", "pool-full", "error", True, f"{waiting} {what} wait for model {model!r} already; this one was not taken",
            why="tasks come faster than the workers finish them",
            next=("wait for results before submitting more (pool.map does so by itself)", "raise max_queue, or add workers"),
        )
    )  # fmt: skip


def pool_closed() -> PoolClosed:
    return PoolClosed(Finding("RW802", "pool-closed", "error", True, "the pool is closed", next=("submit before close()",)))


def deadline_exceeded(model: str, deadline_s: float, was_running: bool) -> DeadlineExceeded:
    state = "was running" if was_running else "had not started, and will not"
    return DeadlineExceeded(
        Finding(
            "RW803", "deadline-exceeded", "error", True, f"a task of model {model!r} was not done within {deadline_s:.3g} s; it {state}",
            next=("allow more time, or submit less at once",),
        )
    )  # fmt: skip


def quarantined(model: str, described: str, deaths: int, death: Death) -> Quarantined:
    return Quarantined(
        Finding(
            "RW804", "killer-input", "error", death.is_proven,
            f"an input of model {model!r} ended {deaths} workers and is not tried again: {described}",
            why=f"the last of them {death.text}" + (f"\n{death.stack}" if death.stack else ""),
            next=("run the model on this input in a process of its own: pool = rankwise.Pool(..., workers=0)",),
        )
    )  # fmt: skip


def task_hung(model: str, described: str, limit_s: float, death: Death) -> TaskHung:
    return TaskHung(
        Finding(
            "RW806", "task-hung", "error", True,
            f"a task of model {model!r} ran for more than {limit_s:.3g} s; its worker was ended and replaced: {described}",
            why=f"where it was:\n{death.stack}" if death.stack else "its stack could not be read",
            next=("look at the line above", f"if it may take that long: Model(..., limit_s={2 * limit_s:.3g})"),
        )
    )  # fmt: skip


def build_failed(model: str, text: str, attempts: int) -> ModelUnavailable:
    """`text` is the worker's traceback. Where it ends in a finding (weights that do not fit), that is what there is to say."""
    last = headline(text) or "its worker died"
    times = f" ({attempts} times)" if attempts > 1 else ""
    why, steps = text, ("the traceback is that of your build or of its weights",)
    if told := _TOLD.search(text):
        last, why = f"{told['code']} {told['summary']}", (told["why"] or "").replace("\n       ", "\n")
        steps = tuple(re.findall(r"^next   (.+)$", told["steps"], re.MULTILINE))
    finding = Finding("RW807", "build-failed", "error", True, f"model {model!r} could not be built{times}: {last}", why=why, next=steps)
    return ModelUnavailable(finding)


def build_died(model: str, attempts: int, death: Death) -> ModelUnavailable:
    """There is no traceback: the process that built it is gone."""
    times = f" ({attempts} times)" if attempts > 1 else ""
    return ModelUnavailable(
        Finding(
            "RW807", "build-failed", "error", True, f"model {model!r} could not be built{times}: the worker that built it {death.text}",
            why=f"where it was:\n{death.stack}" if death.stack else "the process ended in the middle of it, without an exception",
            next=("call the build by itself, in a process of its own, and look at how that ends",),
        )
    )  # fmt: skip


# A finding as the last exception of a traceback, or by itself.
_TOLD = re.compile(
    r"^(?:rankwise\.[\w.]+: )?(?P<code>RW\d{3}) (?P<summary>(?:(?!^why    |^next   |^RW\d{3} ).)+?)"
    r"(?:\nwhy    (?P<why>.*?))?(?P<steps>(?:\nnext   [^\n]*)*)\s*\Z",
    re.MULTILINE | re.DOTALL,
)


def too_large(model: str, nbytes: int, device: str, limit: int) -> ModelUnavailable:
    return ModelUnavailable(
        Finding(
            "RW808", "model-too-large", "error", True,
            f"model {model!r} takes {nbytes / 1e6:.1f} MB, more than all {device} has been given ({limit / 1e6:.1f} MB)",
            why="the budget holds for all models of a device together, so this one cannot be loaded even alone",
            next=(f'raise it: Pool(..., memory={{"{device}": "{-(-nbytes // 10**6)}MB"}})', "or use a smaller model or dtype"),
        )
    )  # fmt: skip


def no_worker(why: str) -> PoolError:
    return PoolError(
        Finding(
            "RW809", "no-worker", "error", True, "the pool's workers cannot be started", why=why,
            next=("what it printed to stderr says more", 'try: python -c "import torch"'),
        )
    )  # fmt: skip


def missing_main_guard() -> MissingMainGuard:
    return MissingMainGuard(
        Finding(
            "RW810", "missing-main-guard", "error", True, "this script starts a pool whenever it is imported, and workers import it",
            why="a build or an input is defined in the script itself, so a worker runs the script to find it, and comes to Pool(...) again",
            next=('put what starts the pool under: if __name__ == "__main__":', 'or move that to a module: Model("my_models:build")'),
        )
    )  # fmt: skip


def not_batched(model: str, reason: str) -> Finding:
    return Finding(
        "RW811", "rows-depend", "warning", True, f"model {model!r} is not batched any more: {reason}",
        why="rows of several requests may run together only where each gives what it gives alone; now requests run one by one and uncut",
        next=(
            "take out what looks over all rows: a mean or a norm over the batch, padding to the longest, an output as wide as its content",
            "say max_batch=1 where the model is meant to be so",
            "where the difference does not matter: Model(..., check_rows=False)",
        ),
    )  # fmt: skip


def lane_full(what: str, nbytes: int, limit: int, used: int, waiting: int) -> PoolFull:
    """`waiting`: what inputs of tasks that are not over hold of what is used; the rest is the caller's."""
    held = max(0, used - waiting)
    return PoolFull(
        Finding(
            "RW801", "pool-full", "error", True,
            f"the lane has no {bytes_text(nbytes)} in one piece for {what}: {bytes_text(used)} of its {bytes_text(limit)} are in use",
            why=f"{bytes_text(waiting)} are inputs of tasks that are not done; {bytes_text(held)} are arrays of pool.empty, and results "
            "that stand on their input's memory, which the caller still has",
            next=(
                "wait for results before submitting more (pool.map does so by itself)",
                "let go of what pool.empty gave, and of results, or keep copies of them (y.clone(), y.copy())",
                "a larger lane: Pool(..., lane_bytes=…)",
            ),
        )
    )  # fmt: skip
