"""The same batches on several ranks: a fault where they average gradients, meant where each holds a part of the model."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rankwise.diagnose.silent.audited_job import AuditedJob
from rankwise.diagnose.silent.same_samples import find
from rankwise.evidence.audit import Audit, BatchSeen, Drawn, PassBegun, PassEnded, Reduced
from tests.diagnose.jobs import job, new_group, rank, stack_of

LOADER = PassBegun(1, 0, 1, 1, "DistributedSampler", False, 0, True, True, 64, False, 0, 0)
MESH = tuple(new_group(*members, name=str(name)) for name, members in enumerate(((0, 1), (2, 3), (0, 2), (1, 3)), 1))


def audited(number: int, *, reduced_in: str, sampler: str) -> Audit:
    """Rank 0 and 1 have one part of the data, 2 and 3 the other."""
    part = number // 2
    begun = replace(LOADER, sampler=sampler, is_distributed=sampler == "DistributedSampler")
    drawn = tuple(Drawn(1, 0, n, 100 * part + n, (part, n), 4) for n in range(4))
    batches = tuple(BatchSeen(1, 0, n, (100 * part + n,), (0,), 8, 4, n + 1) for n in range(4))
    reduces = (Reduced("all_reduce", reduced_in, 0, "gradient of weight", (), (), 8, 1),) if reduced_in else ()
    ended = PassEnded(1, 0, True, 4, 16, 0, 4, 0)
    sites = {1: stack_of("train.py:9 main")}
    return Audit(sites=sites, passes=(begun,), drawn=drawn, batches=batches, pass_ends=(ended,), reduces=reduces)


@pytest.mark.parametrize(
    ("reduced_in", "sampler", "told"),
    [
        ("across", "DistributedSampler", None),  # gradients are averaged over 0 and 2, 1 and 3: 0 and 1 hold parts of one model
        ("", "DistributedSampler", None),  # by a way that is not seen; which part a rank reads was said on purpose
        ("", "RandomSampler", ("info", False)),
        ("all", "DistributedSampler", ("warning", True)),
    ],
)
def test_ranks_that_share_their_data(reduced_in: str, sampler: str, told: tuple[str, bool] | None) -> None:
    ranks = []
    for r in range(4):
        group = {"across": str(3 + r % 2), "all": "0", "": ""}[reduced_in]
        ranks.append(replace(rank(r, []), groups=MESH, audit=audited(r, reduced_in=group, sampler=sampler)))

    found = find(AuditedJob(job(*ranks)))

    assert (None if found is None else (found.severity, found.certain)) == told
