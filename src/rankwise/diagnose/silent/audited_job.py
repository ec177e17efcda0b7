"""The audits of all ranks side by side, with the queries that the files of this room share."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rankwise.causes import load_cause
from rankwise.diagnose.rank_state import place_at
from rankwise.diagnose.waiting import members_of
from rankwise.evidence.audit import Audit, BatchSeen, Drawn, PassBegun, PassEnded, StepSeen
from rankwise.evidence.frames import user_frame
from rankwise.evidence.records import Frame, JobEvidence
from rankwise.findings import Finding, Place

BACKWARDS = "sn-"
Sites = Mapping[int, int | Frame | None]  # by rank: the culprit's line, or the number of its site


@dataclass(frozen=True)
class DataPass:
    """One pass of one rank over a loader, with all that was seen of it."""

    begun: PassBegun
    drawn: dict[int, Drawn]
    batches: dict[int, BatchSeen]
    ended: PassEnded | None

    @property
    def trains(self) -> bool:
        """Whether backwards were made while it ran."""
        is_counted = self.ended is not None and self.ended.backwards > 0
        return is_counted or any(batch.backwards > self.begun.backwards for batch in self.batches.values())


class AuditedJob:
    """All ranks that were audited."""

    def __init__(self, job: JobEvidence) -> None:
        self.job = job
        self.audits: dict[int, Audit] = {rank: e.audit for rank, e in sorted(job.ranks.items())}
        self._passes: dict[int, dict[tuple[Frame | None, int], list[DataPass]]] = {}

    def groups(self) -> list[list[int]]:
        """Ranks that train one model together: those of a DDP wrapper's group, or all where nothing is wrapped."""
        found: list[list[int]] = []
        for rank, audit in self.audits.items():
            members = sorted(audit.wrappers[0].ranks) if audit.wrappers and audit.wrappers[0].ranks else sorted(self.audits)
            present = [member for member in members if member in self.audits]
            if rank in present and len(present) > 1 and present not in found:
                found.append(present)
        return found

    def are_together(self, ranks: list[int]) -> bool:
        """Whether the ranks are seen to train one model on shares of the data: wrapped in DDP, or gradients or weights reduced by hand.

        Others may have the same data, or shares of any size, on purpose: tensor parallelism, a search for a learning rate, an ensemble.
        """
        if any(self.audits[rank].wrappers for rank in ranks):
            return True
        groups = ((one.group, rank) for rank in ranks for one in self.audits[rank].reduces if one.label)
        # With tensor parallelism, gradients are reduced across its groups: the group has to have another one of these ranks in it.
        return any(len(set(members_of(self.job, group, rank)) & set(ranks)) > 1 for group, rank in groups)

    def frame(self, rank: int, site: int) -> Frame | None:
        return user_frame(self.audits[rank].sites.get(site, ()))

    def place(self, rank: int, site: int | Frame | None) -> Place:
        """Where a rank was: by the number of the site, or by the line itself."""
        return place_at(self.job.ranks[rank], self.frame(rank, site) if isinstance(site, int) else site)

    def finding(self, code: str, summary: str, sites: Sites, why: str, *, certain: bool, **details: Any) -> Finding:
        culprits = tuple(self.place(rank, site) for rank, site in sites.items())
        return load_cause(code).finding(summary, certain=certain, why=why, **{"culprits": culprits, **details})

    def proven(self, code: str, summary: str, sites: Sites, why: str, **details: Any) -> Finding:
        return self.finding(code, summary, sites, why, certain=True, **details)

    def suspected(self, code: str, summary: str, sites: Sites, why: str, **details: Any) -> Finding:
        return self.finding(code, summary, sites, why, certain=False, **details)

    def loaders(self, rank: int) -> dict[tuple[Frame | None, int], list[DataPass]]:
        """The passes of each of a rank's loaders, by the line that made it and how many were made there before."""
        if rank not in self._passes:
            self._passes[rank] = _loaders_of(self, rank)
        return self._passes[rank]

    def shared_loaders(self, ranks: list[int]) -> Iterator[dict[int, list[DataPass]]]:
        """The loaders that all of these ranks have."""
        for key in self.loaders(ranks[0]):
            found = {rank: self.loaders(rank).get(key, []) for rank in ranks}
            if all(found.values()):
                yield found

    def steps(self, ranks: list[int]) -> list[dict[int, StepSeen]]:
        """Sampled steps that all of these ranks have, in order. Once one of them has joined early (torch's Join), steps no longer match."""
        by_rank = {rank: {(s.i, s.n, s.syncs): s for s in self.audits[rank].steps if not s.joined} for rank in ranks}
        if any(s.joined for rank in ranks for s in self.audits[rank].steps):
            return []
        shared = set.intersection(*(set(steps) for steps in by_rank.values()))
        return [{rank: by_rank[rank][key] for rank in ranks} for key in sorted(shared)]

    def built(self, rank: int, i: int) -> int | None:
        """Where a rank's optimizer was built, or else stepped."""
        return next((one.built or one.site for one in self.audits[rank].optimizers if one.i == i), None)

    def line_with(self, file: str, words: tuple[str, ...], near: int = 0) -> int | None:
        """The line of a file that has all of these words and is nearest to another."""
        lines = self.job.sources.get(file, "").splitlines()
        found = [n for n, text in enumerate(lines, 1) if all(word in text.split("#")[0] for word in words)]
        return min(found, key=lambda n: abs(n - near)) if found else None


def num_backwards(pattern: str) -> int:
    return sum(letter in BACKWARDS for letter in pattern)


def _loaders_of(audited: AuditedJob, rank: int) -> dict[tuple[Frame | None, int], list[DataPass]]:
    audit = audited.audits[rank]
    drawn: defaultdict[tuple[int, int], dict[int, Drawn]] = defaultdict(dict)
    batches: defaultdict[tuple[int, int], dict[int, BatchSeen]] = defaultdict(dict)
    for one in audit.drawn:
        drawn[one.loader, one.p][one.n] = one
    for batch in audit.batches:
        batches[batch.loader, batch.p][batch.n] = batch
    ended = {(end.loader, end.n): end for end in audit.pass_ends}
    keys: dict[int, tuple[Frame | None, int]] = {}
    found: dict[tuple[Frame | None, int], list[DataPass]] = {}
    for begun in audit.passes:
        if begun.loader not in keys:
            made = audited.frame(rank, begun.made)
            keys[begun.loader] = (made, sum(frame == made for frame, _ in keys.values()))
        at = (begun.loader, begun.n)
        found.setdefault(keys[begun.loader], []).append(DataPass(begun, drawn[at], batches[at], ended.get(at)))
    return found
