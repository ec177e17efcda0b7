"""Ranks that should hold the same weights do not: which tensors, since when, and what came before."""

from __future__ import annotations

from dataclasses import dataclass, field

from rankwise.diagnose.silent.audited_job import BACKWARDS, AuditedJob, num_backwards
from rankwise.evidence.audit import Loaded, Row, StepSeen
from rankwise.evidence.records import Frame
from rankwise.findings import Finding, ranks_text

_LEAST = 3  # sampled steps at which it has to be seen
# Why gradients were not reduced, and the fix, by the last backward before the step and whether an earlier one did reduce.
_REASONS = {
    ("n", True): (
        "the last backward before the step ran in no_sync(), an earlier one did not: the wrong micro-step synchronises",
        "leave no_sync() for the last micro-step of each window, forward and backward, so that this one reduces",
    ),
    ("n", False): (
        "every forward before the step was made inside no_sync(), so DDP never reduced",
        "make the forward of the last micro-step before each step outside no_sync() (it is the forward that decides)",
    ),
    ("-", False): (
        "the last forward did not go through the DDP wrapper (model.module(…), or the model that was wrapped, was called), so DDP did not reduce",
        "call the wrapper itself in training: model(x), not model.module(x)",
    ),
    ("", False): (
        "no backward() came before the step (gradients from torch.autograd.grad?), and DDP reduces in backward() only",
        "call loss.backward() on the output of the wrapper, or all_reduce the gradients by hand",
    ),
    ("s", True): (
        "DDP reduced them in backward, and something changed them after that, differently on each rank",
        "look at what happens to the gradients between backward() and step(): clipping, noise or scaling has to be the same on all ranks",
    ),
}
Apart = tuple[StepSeen, StepSeen, Row, Row]  # the same step on two ranks, and a parameter's rows that differ
_PATIENCE = 24  # while the job runs, weights that differ may still be averaged (local SGD) until this step


@dataclass
class Story:
    """What the sampled steps of some ranks tell, one optimizer's."""

    ranks: list[int]
    of_model: bool
    num_seen: int = 0
    began_equal: bool = False
    grads: list[Apart] = field(default_factory=list)  # reduced by DDP, and yet different
    late: list[Apart] = field(default_factory=list)  # not reduced by DDP, and different
    weights: list[Apart] = field(default_factory=list)
    last_equal: int | None = None  # the last step before the weights differed
    met_again: bool = False  # the weights were equal after having differed
    settings: tuple[StepSeen, StepSeen] | None = None
    states: tuple[StepSeen, StepSeen] | None = None
    last: int = 0


def find(audited: AuditedJob) -> Finding | None:
    stories = (story for ranks in audited.groups() for story in _stories(audited, ranks))
    return next((found for story in stories if (found := _judge(audited, story)) is not None), None)


def _stories(audited: AuditedJob, ranks: list[int]) -> list[Story]:
    found: dict[int, Story] = {}
    for steps in audited.steps(ranks):
        first = steps[ranks[0]]
        _take(found.setdefault(first.i, Story(ranks, first.of_model)), steps)
    return list(found.values())


def _take(story: Story, steps: dict[int, StepSeen]) -> None:
    first = steps[story.ranks[0]]
    story.num_seen += 1
    story.last = first.n
    differ = False
    for rank in story.ranks[1:]:
        other = steps[rank]
        for a, b in zip(first.rows, other.rows):
            if a[0] != b[0]:
                continue
            if a[2] is not None and b[2] is not None and a[2] != b[2]:
                (story.grads if a[1] or not story.of_model else story.late).append((first, other, a, b))
            if a[4] is not None and b[4] is not None and a[4] != b[4]:
                story.weights.append((first, other, a, b))
                differ = True
        if story.settings is None and first.settings != other.settings:
            story.settings = (first, other)
        if story.states is None and None not in (first.state, other.state) and first.state != other.state:
            story.states = (first, other)
    if story.num_seen == 1:
        story.began_equal = not differ
    if not differ and story.weights:
        story.met_again = True
    elif not differ:
        story.last_equal = first.n


def _judge(audited: AuditedJob, story: Story) -> Finding | None:
    if story.of_model and _num_steps(story.late) >= min(_LEAST, story.num_seen) and story.weights:
        return _late(audited, story)
    if not story.weights or _num_steps(story.weights) < 2:
        return None
    averages = story.met_again or _averages(audited, story)
    if not story.of_model:
        return _unwrapped(audited, story, averages)
    if averages:
        return _info(audited, story)
    if audited.job.exit_code is None and story.last < _PATIENCE:
        return None
    if _num_steps(story.grads) >= min(_LEAST, story.num_seen - 1):
        return _not_reduced(audited, story)
    return _loaded_by_some(audited, story) or _other_settings(audited, story) or _other_state(audited, story) or _differ(audited, story)


def _num_steps(seen: list[Apart]) -> int:
    return len({a.n for a, *_ in seen})


def _averages(audited: AuditedJob, story: Story) -> bool:
    """Whether the script averages weights itself now and then, or has given DDP a communication hook: local SGD, or the like."""
    for rank in story.ranks:
        audit = audited.audits[rank]
        size = sum(w.bytes for w in audit.wrappers) // 4
        if any(s.hooked for s in audit.steps):
            return True
        began = story.weights[0][0].t if story.weights else 0
        later = [r for r in audit.reduces if r.t > began]
        if any(r.label.startswith("parameter ") or (not r.label and r.numel > 1 and r.numel >= size > 0) for r in later):
            return True
    return False


def _late(audited: AuditedJob, story: Story) -> Finding:
    a, _b, row_a, row_b = story.late[0]
    names = list(dict.fromkeys(row[0] for _, _, row, _ in story.late))
    return audited.proven(
        "RW771",
        f"gradients of {_some(names)} are not reduced: DDP does not know these parameters, and they differ between ranks",
        dict.fromkeys(story.ranks, _line_of_change(audited, story) or a.site),
        f"at step {a.n} the gradient of parameter {row_a[0]} has norm {_norm(row_a[3])} on rank {story.ranks[0]} and {_norm(row_b[3])} "
        f"on the other; when DDP wrapped the model it was frozen (requires_grad=False) or not there yet, and was unfrozen or added later, "
        f"so the ranks' weights diverge since then",
    )


def _line_of_change(audited: AuditedJob, story: Story) -> Frame | None:
    """Where parameters are unfrozen or added: the first line after the wrapping that does so."""
    rank = story.ranks[0]
    wrapped = audited.frame(rank, audited.audits[rank].wrappers[0].site) if audited.audits[rank].wrappers else None
    if wrapped is None:
        return None
    lines = audited.job.sources.get(wrapped.file, "").splitlines()
    later = enumerate(lines[wrapped.line :], wrapped.line + 1)
    found = next((n for n, text in later if "requires_grad" in text or "add_module(" in text), None)
    return Frame(wrapped.file, found, wrapped.function) if found else None


def _not_reduced(audited: AuditedJob, story: Story) -> Finding:
    a, b, row_a, row_b = story.grads[0]
    rank = story.ranks[0]
    window = next((w for w in reversed(audited.audits[rank].windows) if w.i == a.i and num_backwards(w.pattern)), None)
    letters = [letter for letter in (window.pattern if window else "") if letter in BACKWARDS]
    last = letters[-1] if letters else ""
    how, fix = _REASONS[last, "s" in letters and last != "-"]
    sites = {r: _line_of_backward(audited, r, a, last) for r in story.ranks}
    return audited.proven(
        "RW760",
        f"gradients are not reduced before the optimizer's step: they differ between {ranks_text(story.ranks)}, and so do the weights",
        sites,
        f"at step {a.n} the gradient of {row_a[0]} has norm {_norm(row_a[3])} on rank {rank} and {_norm(row_b[3])} on another rank "
        f"(seen at {_num_steps(story.grads)} of {story.num_seen} steps looked at){_around_reduction(a, b)}; {how}",
        instead=(fix,),
    )


def _around_reduction(a: StepSeen, b: StepSeen) -> str:
    """The norms of one gradient before and after DDP had its chance to reduce it, on two ranks."""
    before_a, before_b = dict(a.local), dict(b.local)
    after_a, after_b = ({row[0]: row[3] for row in step.rows} for step in (a, b))
    name = next((name for name in before_a if name in before_b and name in after_a and name in after_b), None)
    if name is None:
        return ""
    before, after = ([_norm(one[name]) for one in pair] for pair in ((before_a, before_b), (after_a, after_b)))
    return f"; that of {name} had norms {before[0]} and {before[1]} as the last backward computed it, {after[0]} and {after[1]} at the step"


def _line_of_backward(audited: AuditedJob, rank: int, step: StepSeen, letter: str) -> int | Frame | None:
    """Where the backward was made that did not reduce, or the inner module was called near it; else the step's own line."""
    windows = [w for w in audited.audits[rank].windows if letter in ("n", "-") and w.i == step.i and letter in w.places]
    site = windows[-1].places[letter] if windows else step.site
    frame = audited.frame(rank, site)
    line = audited.line_with(frame.file, (".module(",), frame.line) if frame is not None and letter == "-" else None
    return Frame(frame.file, line, frame.function) if frame is not None and line else site


def _loaded_by_some(audited: AuditedJob, story: Story) -> Finding | None:
    """A checkpoint that only some ranks loaded, after DDP had made the weights the same, or into the optimizer."""
    loads = {rank: [one for one in audited.audits[rank].loads if one.what == "optimizer" or one.wrapped] for rank in story.ranks}
    most = max(len(found) for found in loads.values())
    some = [rank for rank, found in loads.items() if len(found) == most]
    if not most or len(some) == len(story.ranks):
        return None
    one: Loaded = loads[some[0]][-1]
    others = [rank for rank in story.ranks if rank not in some]
    a, _b, row_a, row_b = story.weights[0]
    return audited.proven(
        "RW773",
        f"only {ranks_text(some)} loaded the checkpoint's {one.what} state: weights differ between ranks",
        {rank: loads[rank][-1].site for rank in some},
        f"{ranks_text(some)} called load_state_dict of the {one.what} after {one.steps} steps, {ranks_text(others)} did not; "
        f"at step {a.n} {row_a[0]} is different ({_norm(row_a[5])} against {_norm(row_b[5])}). DDP sends rank 0's weights to all once, when it wraps",
    )


def _other_settings(audited: AuditedJob, story: Story) -> Finding | None:
    if story.settings is None:
        return None
    a, b = story.settings
    other = next(r for r in story.ranks[1:] if b in audited.audits[r].steps)
    return audited.proven(
        "RW775",
        f"the optimizer has other settings on rank {other} than on rank {story.ranks[0]}, so the ranks' weights diverge",
        {rank: audited.built(rank, a.i) for rank in story.ranks},
        f"at step {a.n}: {_difference(a.settings, b.settings)}; the gradients are the same, the steps are not",
    )


def _difference(a: str, b: str) -> str:
    pairs = [(x, y) for x, y in zip(a.replace("; ", ", ").split(", "), b.replace("; ", ", ").split(", ")) if x != y]
    return ", ".join(f"{x} against {y}" for x, y in pairs[:4]) or f"{a} against {b}"


def _other_state(audited: AuditedJob, story: Story) -> Finding | None:
    if story.states is None or not story.weights or story.states[0].n > story.weights[0][0].n:
        return None
    a, _ = story.states
    return audited.proven(
        "RW776",
        "the optimizer's state differs between ranks, so they make different steps from the same gradients",
        dict.fromkeys(story.ranks, a.site),
        f"its momenta (or the like) were different before step {a.n}, when the gradients were still the same",
    )


def _differ(audited: AuditedJob, story: Story) -> Finding:
    a, _b, row_a, row_b = story.weights[0]
    has_been_equal = story.last_equal is not None
    since = f"equal until step {story.last_equal}, different at step {a.n}" if has_been_equal else f"different from step {a.n} on"
    return audited.proven(
        "RW770",
        f"the weights differ between {ranks_text(story.ranks)}: {row_a[0]} is {since}",
        dict.fromkeys(story.ranks, a.site),
        f"norm {_norm(row_a[5])} on rank {story.ranks[0]}, {_norm(row_b[5])} on another; the gradients at these steps are the same on all ranks, "
        "so something else changed the weights, or a step was made on some ranks only",
    )


def _unwrapped(audited: AuditedJob, story: Story, averages: bool) -> Finding | None:
    """No DDP: replicas that began equal and drift apart. Ensembles do so on purpose; ranks that share out one dataset do not."""
    a, _b, row_a, row_b = story.weights[0]
    reduces = any(r.label.startswith("gradient") for rank in story.ranks for r in audited.audits[rank].reduces)
    if not story.began_equal:
        return _began_apart(audited, story) if reduces and not averages and not story.grads else None
    shared = any(one.begun.is_distributed for rank in story.ranks for passes in audited.loaders(rank).values() for one in passes)
    if averages:
        return _info(audited, story)
    return audited.suspected(
        "RW714",
        f"the model is not wrapped in DDP: {ranks_text(story.ranks)} began with the same weights and train apart; "
        f"gradients {'still differ after being reduced by hand' if reduces else 'are not reduced'}",
        dict.fromkeys(story.ranks, a.site),
        f"at step {a.n} {row_a[0]} has norm {_norm(row_a[5])} on rank {story.ranks[0]} and {_norm(row_b[5])} on another"
        + ("; the data is shared out with a DistributedSampler" if shared else ""),
        severity="warning" if shared or reduces else "info",
        instead=(
            "wrap the model in DistributedDataParallel and call the wrapper in the loop, or average every gradient on all ranks before each step",
        ),
    )


def _began_apart(audited: AuditedJob, story: Story) -> Finding | None:
    """Gradients that are reduced by hand are the same on all ranks, but the weights they change never were."""
    if _num_steps(story.weights) < min(_LEAST, story.num_seen):
        return None
    a, _b, row_a, row_b = story.weights[0]
    return audited.proven(
        "RW770",
        f"the weights differ between {ranks_text(story.ranks)} from the first step on, and their gradients are averaged by hand",
        dict.fromkeys(story.ranks, a.site),
        f"at step {a.n} {row_a[0]} has norm {_norm(row_a[5])} on rank {story.ranks[0]} and {_norm(row_b[5])} on another, and the same gradient: "
        "that is the mean of gradients of different models",
        instead=("before the first step, broadcast rank 0's parameters and buffers to all ranks, or build the model from the same seed",),
    )


def _info(audited: AuditedJob, story: Story) -> Finding:
    a, _b, row_a, _row_b = story.weights[0]
    return audited.suspected(
        "RW770",
        f"the weights differ between ranks at some steps and are averaged now and then: {row_a[0]} at step {a.n}",
        dict.fromkeys(story.ranks, a.site),
        "that is local SGD, if it is meant so",
        severity="info",
    )


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:3])
    return f"parameter {shown}" if len(names) == 1 else f"parameters {shown}" + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _norm(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.6g}"
