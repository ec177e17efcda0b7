"""The audits of all ranks side by side, and the questions every kind of fault asks of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rankwise.diagnose.rank_state import place_at
from rankwise.diagnose.waiting import members_of
from rankwise.evidence.audit import Audit, BatchSeen, Drawn, PassBegun, PassEnded, StepSeen, Window
from rankwise.evidence.frames import user_frame
from rankwise.evidence.records import Frame, JobEvidence
from rankwise.findings import Place

BACKWARDS = "sn-"


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
        if self.ended is not None and self.ended.backwards > 0:
            return True
        return any(batch.backwards > self.begun.backwards for batch in self.batches.values())


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
        return any(
            self.audits[rank].wrappers or any(one.label and self._share(ranks, rank, one.group) for one in self.audits[rank].reduces)
            for rank in ranks
        )

    def _share(self, ranks: list[int], rank: int, group: str) -> bool:
        """Whether a rank's group has another one of these ranks in it: with tensor parallelism, gradients are reduced across its groups."""
        return len(set(members_of(self.job, group, rank)) & set(ranks)) > 1

    def frame(self, rank: int, site: int) -> Frame | None:
        return user_frame(self.audits[rank].sites.get(site, ()))

    def place(self, rank: int, site: int | None) -> Place:
        return self.place_at(rank, self.frame(rank, site) if site else None)

    def place_at(self, rank: int, frame: Frame | None) -> Place:
        return place_at(self.job.ranks[rank], frame)

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

    def windows(self, rank: int) -> dict[int, list[Window]]:
        """The windows of each optimizer; the very first is left out, which may hold what happens only once."""
        found: dict[int, list[Window]] = {}
        for window in self.audits[rank].windows:
            found.setdefault(window.i, []).append(window)
        return found

    def line_with(self, file: str, words: tuple[str, ...], near: int = 0) -> int | None:
        """The line of a file that has all of these words and is nearest to another."""
        lines = self.job.sources.get(file, "").splitlines()
        found = [n for n, text in enumerate(lines, 1) if all(word in text.split("#")[0] for word in words)]
        return min(found, key=lambda n: abs(n - near)) if found else None


def num_backwards(pattern: str) -> int:
    return sum(letter in BACKWARDS for letter in pattern)


def _loaders_of(audited: AuditedJob, rank: int) -> dict[tuple[Frame | None, int], list[DataPass]]:
    audit = audited.audits[rank]
    drawn: dict[tuple[int, int], dict[int, Drawn]] = {}
    for one in audit.drawn:
        drawn.setdefault((one.loader, one.p), {})[one.n] = one
    batches: dict[tuple[int, int], dict[int, BatchSeen]] = {}
    for batch in audit.batches:
        batches.setdefault((batch.loader, batch.p), {})[batch.n] = batch
    ended = {(end.loader, end.n): end for end in audit.pass_ends}
    keys: dict[int, tuple[Frame | None, int]] = {}
    found: dict[tuple[Frame | None, int], list[DataPass]] = {}
    for begun in audit.passes:
        if begun.loader not in keys:
            made = audited.frame(rank, begun.made)
            keys[begun.loader] = (made, sum(frame == made for frame, _ in keys.values()))
        at = (begun.loader, begun.n)
        found.setdefault(keys[begun.loader], []).append(DataPass(begun, drawn.get(at, {}), batches.get(at, {}), ended.get(at)))
    return found
