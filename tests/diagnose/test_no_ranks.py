"""What is told of a command that never came to start a rank."""

from __future__ import annotations

import pytest

from rankwise.diagnose.no_ranks import find_command_failure
from rankwise.evidence.records import JobEvidence, RankEvidence

TRACEBACK = """\
loading
Traceback (most recent call last):
  File "/home/ada/train.py", line 3, in <module>
    import nothing
ModuleNotFoundError: No module named 'nothing'
"""


def job(exit_code: int | None, said: str = "", *ranks: RankEvidence) -> JobEvidence:
    return JobEvidence(
        ("python", "train.py"), 0, 9, None, 10.0, {r.rank: r for r in ranks}, exit_code=exit_code, log_tails={"launcher": said}
    )


def test_an_exception() -> None:
    finding = find_command_failure(job(1, TRACEBACK))

    assert finding is not None
    assert (finding.code, finding.certain) == ("RW413", True)
    assert "ended with exit code 1 before any rank had started: ModuleNotFoundError: No module named 'nothing'" in finding.summary
    (place,) = finding.culprits
    assert (place.rank, place.file, place.line) == (None, "/home/ada/train.py", 3)


@pytest.mark.parametrize(
    ("code", "said", "expected"),
    [
        (
            2,
            "usage: run.py\nrun.py: error: unrecognized arguments: --x\n\n",
            "exit code 2 before any rank had started: run.py: error: unrec",
        ),
        (137, "", "was ended by SIGKILL before any rank had started"),
        (255, "", "ended with exit code 255 before any rank had started"),
        (42, "", "ended with exit code 42 before any rank had started"),
    ],
    ids=str,
)
def test_a_code_and_the_last_line(code: int, said: str, expected: str) -> None:
    finding = find_command_failure(job(code, said))

    assert finding is not None
    assert expected in finding.summary
    assert finding.culprits == ()


@pytest.mark.parametrize("evidence", [job(None), job(0, TRACEBACK), job(1, TRACEBACK, RankEvidence(0))], ids=["running", "well", "a rank"])
def test_nothing_to_tell(evidence: JobEvidence) -> None:
    assert find_command_failure(evidence) is None
