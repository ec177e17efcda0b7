"""Several ranks write the same file."""

from __future__ import annotations

from collections import defaultdict

from rankwise.diagnose.silent.audited_job import AuditedJob
from rankwise.evidence.audit import Wrote
from rankwise.findings import Finding, ranks_text

_AT_ONCE_NS = 2_000_000_000


def find(audited: AuditedJob) -> Finding | None:
    by_path: defaultdict[tuple[str, str], defaultdict[int, list[Wrote]]] = defaultdict(lambda: defaultdict(list))
    for rank, audit in audited.audits.items():
        for one in audit.writes:
            by_path[audited.job.ranks[rank].host, one.path][rank].append(one)
    shared = {path: ranks for (_, path), ranks in by_path.items() if len(ranks) > 1 and _at_once(ranks)}
    saved = [path for path, ranks in shared.items() if any(one.how == "torch.save" for found in ranks.values() for one in found)]
    first = next(iter([*saved, *shared]), None)
    return _finding(audited, first, shared[first], bool(saved)) if first is not None else None


def _at_once(ranks: dict[int, list[Wrote]]) -> bool:
    """Whether the ranks' first writes, second writes and so on came close after each other."""
    rounds = list(zip(*ranks.values()))
    return any(max(one.t for one in written) - min(one.t for one in written) < _AT_ONCE_NS for written in rounds)


def _finding(audited: AuditedJob, path: str, ranks: dict[int, list[Wrote]], is_saved: bool) -> Finding:
    one = next(iter(ranks.values()))[0]
    times = [found[0].t for found in ranks.values()]
    name = path.removeprefix(audited.job.cwd.rstrip("/") + "/")
    return audited.proven(
        "RW782",
        f"{ranks_text(list(ranks))} write the same file {name}, {'with ' + one.how if is_saved else 'opened for writing'}, at the same time",
        {rank: found[0].site for rank, found in ranks.items()},
        f"the path is the same on every rank ({len(next(iter(ranks.values())))} times), and their writes are "
        f"{(max(times) - min(times)) / 1e6:.0f} ms apart: every rank overwrites the others' file",
        severity="warning" if is_saved else "info",
    )
