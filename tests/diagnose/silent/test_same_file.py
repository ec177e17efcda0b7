"""Several ranks that write one file: at the same time, on the same host."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rankwise.diagnose.silent.audited_job import AuditedJob
from rankwise.diagnose.silent.same_file import find
from rankwise.evidence.audit import Audit, Wrote
from tests.diagnose.jobs import SECOND, job, path_of
from tests.diagnose.silent.audits import audited, lines


def wrote(name: str, *at_s: float, how: str = "torch.save", site: int = 30) -> tuple[Wrote, ...]:
    return tuple(Wrote(path_of(name), how, site, t=int(s * SECOND)) for s in at_s)


def test_a_checkpoint_saved_by_all_ranks_at_once_is_found() -> None:
    found = find(audited(Audit(writes=wrote("out/model.pt", 10)), Audit(writes=wrote("out/model.pt", 10.5))))

    assert (found.code, found.severity, found.certain) == ("RW782", "warning", True)
    assert "write the same file out/model.pt, with torch.save" in found.summary
    assert "500 ms apart" in found.why and lines(found) == {0: 30, 1: 30}


def test_a_file_that_is_only_opened_is_a_note_and_comes_after_a_saved_one() -> None:
    opened, saved = wrote("log.txt", 10, how="open"), wrote("model.pt", 11)

    assert find(audited(Audit(writes=opened), Audit(writes=opened))).severity == "info"
    assert "model.pt" in find(audited(Audit(writes=opened + saved), Audit(writes=opened + saved))).summary


@pytest.mark.parametrize(
    ("mine", "theirs", "is_found"),
    [
        (wrote("a.pt", 10), wrote("b.pt", 10), False),
        (wrote("a.pt", 10), (), False),
        (wrote("a.pt", 10), wrote("a.pt", 11.9), True),
        (wrote("a.pt", 10), wrote("a.pt", 12), False),
        (wrote("a.pt", 10, 20), wrote("a.pt", 15, 21), True),  # in the second round
    ],
)
def test_it_is_the_same_file_within_two_seconds(mine: tuple[Wrote, ...], theirs: tuple[Wrote, ...], is_found: bool) -> None:
    assert (find(audited(Audit(writes=mine), Audit(writes=theirs))) is not None) == is_found


def test_the_same_path_on_another_host_is_another_file() -> None:
    writes = Audit(writes=wrote("a.pt", 10))
    first, second = audited(writes, writes).job.ranks.values()

    assert find(AuditedJob(job(first, replace(second, host="node-b")))) is None
