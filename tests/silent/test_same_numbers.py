"""The audit only looks: losses are the same to the last bit with it off, light and full."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.silent.stage import Host, evidence

pytestmark = pytest.mark.live  # minutes on two cores

TRAININGS = sorted((Path(__file__).parent / "trainings").glob("*.py"))
LEVELS = ("off", "light", "full")


@pytest.fixture(scope="module")
def losses(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], list[str]]:
    """What both ranks of each training printed, at each level."""
    found: dict[tuple[str, str], list[str]] = {}
    for level in LEVELS:
        host = Host(tmp_path_factory.mktemp("live"), level)
        for script in TRAININGS:
            work = tmp_path_factory.mktemp("job")
            codes = host.run(script, False, work)
            logs = [(work / f"rank-{rank}.log").read_text() for rank in sorted(codes)]
            assert set(codes.values()) == {0}, logs
            job = evidence(work, script)
            assert all(bool(e.audit.steps) == (level != "off") for e in job.ranks.values())
            found[script.stem, level] = logs
        host.close()
    return found


@pytest.mark.parametrize("training", [script.stem for script in TRAININGS])
def test_losses_are_the_same_to_the_last_bit(training: str, losses: dict[tuple[str, str], list[str]]) -> None:
    off, light, full = (losses[training, level] for level in LEVELS)

    assert len(off[0].split()) >= 30 and off[0] != off[1]
    assert light == off
    assert full == off
