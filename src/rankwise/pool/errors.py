"""The pool's own errors, each with its finding; and how a worker ended, which decides whether an input or a build is to blame."""

from __future__ import annotations

import signal
from dataclasses import dataclass, replace
from pathlib import Path

from rankwise.causes import load_cause
from rankwise.errors import RankwiseError, headline
from rankwise.files import text_if_readable
from rankwise.findings import Finding, signal_name
from rankwise.sizes import bytes_text


class PoolError(RankwiseError):
    """Base class of the errors that a pool raises on purpose."""


class PoolFull(PoolError):
    """The pool has no room for one more task: try later, or somewhere else."""


class PoolClosed(PoolError):
    """The pool is closed, or was closed before the task could run."""


class DeadlineExceeded(PoolError, TimeoutError):
    """The task's deadline passed before its result had arrived."""


class Quarantined(PoolError):
    """The input kills workers; it is not tried again."""


class TaskHung(PoolError, TimeoutError):
    """The task ran past its model's limit; its worker was ended."""


class ModelUnavailable(PoolError):
    """The model cannot be built, or does not fit."""


class ModelError(RankwiseError):
    """The model raised an exception, or returned an output, that cannot be sent between processes; the message says what it was."""


class Unsendable(TypeError):
    """A value that cannot go from one process to another."""


class MissingMainGuard(PoolError):
    """A script that starts a pool was imported by a worker of that pool."""


def pool_full(model: str, waiting: int, what: str) -> PoolFull:
    summary = f"{waiting} {what} wait for model {model!r} already; this one was not taken"
    return PoolFull(_found("RW801", summary, "tasks come faster than the workers finish them"))


def pool_closed() -> PoolClosed:
    return PoolClosed(_found("RW802", "the pool is closed"))


def pool_elsewhere() -> PoolClosed:
    why = "this process was forked from the one that made it, and has none of its own"
    steps = ("make the pool in the process that uses it: in gunicorn's post_fork, say, not in an app that preload_app loads",)
    return PoolClosed(_found("RW802", "the pool is another process's", why, instead=steps))


def removed(model: str) -> PoolClosed:
    return PoolClosed(_found("RW802", f"model {model!r} was removed from the pool"))


def overtaken(model: str) -> PoolClosed:
    steps = ("nothing, if the later call was meant; otherwise wait for this reload before you make that call",)
    return PoolClosed(
        _found("RW802", f"model {model!r} was removed, or replaced by a later call, before this reload was done", instead=steps)
    )


def deadline_exceeded(model: str, deadline_s: float, was_running: bool) -> DeadlineExceeded:
    state = "was running" if was_running else "had not started, and will not"
    return DeadlineExceeded(_found("RW803", f"a task of model {model!r} was not done within {deadline_s:.3g} s; it {state}"))


def quarantined(model: str, described: str, deaths: int, death: Death) -> Quarantined:
    summary = f"an input of model {model!r} ended {deaths} workers and is not tried again: {described}"
    why = f"the last of them {death.text}" + (f"\n{death.stack}" if death.stack else "")
    return Quarantined(_found("RW804", summary, why, certain=death.is_proven))


def killed_actors(model: str, described: str, deaths: int, why: str) -> Quarantined:
    """The input ran alone in actors that died. Ray does not say how an actor died, so the finding is never certain."""
    summary = f"an input of model {model!r} ran alone in {deaths} Ray actors that died, and is not tried again: {described}"
    return Quarantined(_found("RW804", summary, f"the last of them: {why}", certain=False))


def task_hung(model: str, described: str, limit_s: float, death: Death) -> TaskHung:
    summary = f"a task of model {model!r} ran for more than {limit_s:.3g} s; its worker was ended and replaced: {described}"
    why = f"where it was:\n{death.stack}" if death.stack else "its stack could not be read"
    return TaskHung(_found("RW806", summary, why, next=(f"if it may take that long: Model(..., limit_s={2 * limit_s:.3g})",)))


def build_failed(model: str, text: str, attempts: int, cause: BaseException) -> ModelUnavailable:
    """`text` is the worker's traceback. A build that failed with a finding (weights that do not fit) is reported with that finding."""
    failed = f"model {model!r} could not be built{_times(attempts)}"
    if isinstance(cause, RankwiseError) and not isinstance(cause, ModelError):
        finding = cause.finding
        return ModelUnavailable(replace(_found("RW807", f"{failed}: {finding.code} {finding.summary}", finding.why), next=finding.next))
    return ModelUnavailable(_found("RW807", f"{failed}: {headline(text) or 'its worker died'}", text))


def build_died(model: str, attempts: int, death: Death) -> ModelUnavailable:
    """The error for a model whose build ended its process, so that no traceback is left."""
    why = f"where it was:\n{death.stack}" if death.stack else "the process ended in the middle of it, without an exception"
    summary = f"model {model!r} could not be built{_times(attempts)}: the worker that built it {death.text}"
    steps = (f"if it may take that long: Model(..., limit_s={2 * death.hung_s:.3g})",) if death.hung_s is not None else ()
    return ModelUnavailable(_found("RW807", summary, why, next=steps))


def cannot_be_sent(model: str, error: BaseException) -> ModelError:
    steps = ("return tensors, arrays, numbers, text, or lists, tuples and dicts of them; whatever else has to be picklable",)
    return ModelError(_found("RW805", f"the output of model {model!r} cannot be sent to the caller: {error}", instead=steps))


def model_raised(model: str, text: str) -> ModelError:
    """`text` is the worker's traceback."""
    why = "its class cannot be had in this process, or would end it; the worker's traceback is the cause of this error"
    return ModelError(_found("RW805", f"model {model!r} raised {headline(text) or 'an exception'}", why))


def too_large(model: str, nbytes: int, device: str, limit: int) -> ModelUnavailable:
    summary = f"model {model!r} takes {nbytes / 1e6:.1f} MB, more than all {device} has been given ({limit / 1e6:.1f} MB)"
    why = "the budget holds for all models of a device together, so this one cannot be loaded even alone"
    steps = (f'raise it: Pool(..., memory={{"{device}": "{-(-nbytes // 10**6)}MB"}})', "or use a smaller model or dtype")
    return ModelUnavailable(_found("RW808", summary, why, instead=steps))


def no_worker(why: str, instead: tuple[str, ...] = ()) -> PoolError:
    return PoolError(_found("RW809", "the pool's workers cannot be started", why, instead=instead))


def missing_main_guard() -> MissingMainGuard:
    why = "a build or an input is defined in the script, so a worker runs the script to find it, and comes to Pool(...) or predict() again"
    return MissingMainGuard(_found("RW810", "this script starts a pool whenever it is imported, and workers import it", why))


def not_batched(model: str, reason: str) -> Finding:
    why = "rows of several requests may run together only where each gives what it gives alone; now requests run one by one and uncut"
    return _found("RW811", f"model {model!r} is not batched any more: {reason}", why)


def lane_full(what: str, nbytes: int, limit: int, used: int, waiting: int) -> PoolFull:
    """`waiting` is the part of `used` that inputs of open tasks hold; the caller holds the rest."""
    held = max(0, used - waiting)
    summary = f"the lane has no {bytes_text(nbytes)} in one piece for {what}: {bytes_text(used)} of its {bytes_text(limit)} are in use"
    why = (
        f"{bytes_text(waiting)} are inputs of tasks that are not done; {bytes_text(held)} are arrays of pool.empty, and results "
        "that stand on their input's memory, which the caller still has"
    )
    steps = (
        "wait for results before submitting more (pool.map does so by itself)",
        "let go of what pool.empty gave, and of results, or keep copies of them (y.clone(), y.copy())",
        "a larger lane: Pool(..., lane_bytes=…)",
    )
    return PoolFull(_found("RW801", summary, why, instead=steps))


# Read at import: once the file descriptors have run out, a page could no longer be opened.
_CAUSES = {code: load_cause(code) for code in [f"RW{number}" for number in range(801, 812)]}


def _found(code: str, summary: str, why: str = "", *, certain: bool = True, **steps: tuple[str, ...]) -> Finding:
    return _CAUSES[code].finding(summary, certain=certain, why=why, **steps)


def _times(attempts: int) -> str:
    return f" ({attempts} times)" if attempts > 1 else ""


# How many workers may die while they run an input before it is quarantined.
MAX_PROVEN_DEATHS = 2  # the input is known to be the cause
MAX_SIGNAL_DEATHS = 3  # by a signal that any process may have sent
MAX_KILLS = 6  # by SIGKILL, without a sign that memory ran out
MAX_BUILDS = 3  # failures of a build that another attempt may get past: the worker died in it, or memory ran out
_BACK_OFF_S = (0.0, 0.5, 2.0)


@dataclass(frozen=True)
class Death:
    """How a worker ended: its exit code (negative for a signal) and what was seen around it."""

    exit_code: int | None
    out_of_memory: bool = False
    is_guess: bool = False  # memory ran out somewhere on the machine, perhaps not because of this worker
    hung_s: float | None = None  # we ended it, because a task took too long
    stopped: bool = False  # we ended it, because it had been stopped
    own_doing: bool = False  # the model's code sent the signal itself, during its latest task
    is_gpu_unusable: bool = False  # it left because nothing more could run on its GPU
    stack: str = ""

    @property
    def text(self) -> str:
        if self.hung_s is not None:
            return f"was ended because it ran for {self.hung_s:.1f} s"
        if self.is_gpu_unusable:
            return "left after an error of its GPU, after which nothing more could run there in the same process"
        if self.stopped:
            return "was ended because it stood stopped (SIGSTOP)"
        if self.exit_code is None:
            return "ended, and how cannot be told: the process it was forked from had ended before"
        if self.exit_code >= 0:
            return f"left with exit code {self.exit_code}"
        name = signal_name(-self.exit_code)
        if not self.out_of_memory:
            return f"was killed by {name}"
        return f"was killed by {name}, " + ("perhaps because the machine's memory ran out" if self.is_guess else "because memory ran out")

    @property
    def is_proven(self) -> bool:
        """Whether the model's own code ended the worker. An exit code proves that, because no other process can make a worker exit. Lack
        of memory counts as proof too, though in rare cases another process used up the memory."""
        left = self.exit_code is not None and self.exit_code >= 0 and not self.stopped
        return left or self.own_doing or self.out_of_memory

    @property
    def is_kill(self) -> bool:
        """Whether the worker died by SIGKILL, which any process may send, or in an unknown way; neither proves anything."""
        return self.exit_code in (None, -signal.SIGKILL) and not self.stopped  # the pool itself kills a stopped worker


def is_quarantined(proven_deaths: int, deaths: int, death: Death, others: int = 0) -> bool:
    """An input is quarantined after two proven deaths. Deaths that another process may have caused count less, because bad luck repeats.
    They count even less where workers lately died of signals without this input (`others`): then another process does send signals."""
    if proven_deaths >= MAX_PROVEN_DEATHS:
        return True
    if death.is_kill or others >= MAX_PROVEN_DEATHS:
        return deaths >= MAX_KILLS
    return deaths >= MAX_SIGNAL_DEATHS


def is_hopeless(build_failures: int, death: Death, others: int = 0) -> bool:
    """Whether to give up a model after so many workers died building it. Deaths that another process may have caused count less."""
    may_be_bad_luck = not death.is_proven and (death.is_kill or death.stopped or others >= MAX_PROVEN_DEATHS)
    return death.hung_s is not None or build_failures >= (MAX_KILLS if may_be_bad_luck else MAX_BUILDS)


def back_off_s(failures: int) -> float:
    """How long to wait before a build that failed is tried again."""
    return _BACK_OFF_S[min(failures, len(_BACK_OFF_S) - 1)]


_SOON_S = 1.0  # a kill that matches no worker within this time, or twice that, was another process's


class OomWatch:
    """Tells whether the kernel killed a worker because memory ran out. Each kill that it counts explains one worker's death at most."""

    def __init__(self, now: float, proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> None:
        self._proc, self._cgroups = proc, cgroups
        self._ours = self._count_of_group() or 0
        self._machines = count = self._count_of_machine()
        self._noted = now, count

    def note(self, now: float) -> None:
        """Remember how many kills there were so far; called several times a second."""
        noted, count = self._noted
        if now - noted >= _SOON_S:
            self._machines = max(self._machines, count)
            self._noted = now, self._count_of_machine()

    def look(self, now: float) -> str:
        """Say why a worker was killed: "certain" if the kernel ended a process of our control group because memory ran out, "perhaps" if
        it ended one elsewhere on the machine, "" if it ended none or that kill was already counted for another worker."""
        self.note(now)
        ours, machines = self._count_of_group(), self._count_of_machine()
        if ours is not None and ours > self._ours:
            self._ours += 1
            self._machines = min(machines, self._machines + 1)
            return "certain"
        if machines > self._machines:
            self._machines += 1
            return "perhaps"
        return ""

    def _count_of_group(self) -> int | None:
        """Kills in this process' control group (version 2). In a container the group often is the root of the visible tree."""
        path = next((line[3:] for line in text_if_readable(self._proc / "self/cgroup").splitlines() if line.startswith("0::")), "")
        counts = [_oom_kills(text_if_readable(folder / "memory.events")) for folder in (self._cgroups / path.lstrip("/"), self._cgroups)]
        return next((count for count in counts if count is not None), None)

    def _count_of_machine(self) -> int:
        return _oom_kills(text_if_readable(self._proc / "vmstat")) or 0


def _oom_kills(text: str) -> int | None:
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith("oom_kill ")), None)
