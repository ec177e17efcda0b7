"""Reading the dataset uses random numbers that are the same on all ranks."""

from __future__ import annotations

from collections import Counter

from rankwise.diagnose.silent.audited_job import AuditedJob
from rankwise.evidence.audit import Seeded
from rankwise.findings import Finding, ranks_text

_LEAST = 3
Key = tuple[str, int, int, int]
_NAMES = {"random": "random", "torch": "torch", "numpy": "numpy.random"}


def find(audited: AuditedJob) -> Finding | None:
    for ranks in audited.groups():
        states = {rank: _states(audited, rank) for rank in ranks}
        common = set.intersection(*(set(found) for found in states.values()))
        same = {key for key in common if len({states[rank][key] for rank in ranks}) == 1}
        different = {key[0] for key in common - same}
        alike = [g for g, num in sorted(Counter(key[0] for key in same).items()) if num >= _LEAST and g not in different]
        if alike and _trains_on_different_samples(audited, ranks):
            return _finding(audited, ranks, alike, len(same))
    return None


def _states(audited: AuditedJob, rank: int) -> dict[Key, int]:
    """The generators' states before each look at the dataset, by generator, worker, number and epoch (new workers count from 0 again)."""
    times: Counter[tuple[str, int, int]] = Counter()
    found: dict[Key, int] = {}
    for seen in audited.audits[rank].randoms:
        for name, state in zip(seen.used, seen.before):
            look = (name, seen.worker, seen.n)
            found[(*look, times[look])] = state
            times[look] += 1
    return found


def _trains_on_different_samples(audited: AuditedJob, ranks: list[int]) -> bool:
    """Whether the ranks train on different samples; the same samples on all ranks are a finding of their own."""
    for loader in audited.shared_loaders(ranks):
        passes = [loader[rank][0] for rank in ranks]
        if all(one.trains for one in passes) and not passes[0].begun.is_iterable:
            return len({one.drawn[0].sum for one in passes if 0 in one.drawn}) > 1
    return False


def _finding(audited: AuditedJob, ranks: list[int], generators: list[str], num_same: int) -> Finding:
    seeds = {rank: _seed_of(audited, rank, generators) for rank in ranks}
    values = {seed.value for seed in seeds.values() if seed is not None}
    is_seeded = len(values) == 1 and all(seeds.values())
    names = " and ".join(_NAMES.get(g, g) for g in generators)
    how = f"all ranks call seed {next(iter(values))}" if is_seeded else "the generators have the same state on all ranks"
    return audited.proven(
        "RW754",
        f"random augmentation is the same on {ranks_text(ranks)}: their datasets draw identical random numbers",
        {rank: seed.site if seed else None for rank, seed in seeds.items()},
        f"the samples differ, but before each of {num_same} looks at the dataset the state of {names} was the same on all ranks; {how}",
        instead=("seed with seed + rank once the model is built: random.seed(seed + rank), torch.manual_seed(seed + rank)",),
        severity="warning" if is_seeded else "info",
    )


def _seed_of(audited: AuditedJob, rank: int, generators: list[str]) -> Seeded | None:
    """The last call that seeded one of these; DataLoader workers take their seeds from torch's."""
    used = min((seen.t for seen in audited.audits[rank].randoms), default=0)
    seeds = [seed for seed in audited.audits[rank].seeds if seed.t < used]
    return next((seed for g in (*generators, "torch") for seed in reversed(seeds) if seed.which == g), None)
