"""The stages of a start-up, by number and by name."""

from __future__ import annotations

from rankwise.stages import BACKEND, ENVIRONMENT, GRADIENT, STAGE_NAMED, STAGES


def test_a_stage_says_which_of_all_it_is() -> None:
    assert str(ENVIRONMENT) == f"environment read (stage 1 of {len(STAGES)})"
    assert str(BACKEND) == f"backend connected (stage 6 of {len(STAGES)})"
    assert str(GRADIENT).endswith(f"(stage {len(STAGES)} of {len(STAGES)})")


def test_no_two_stages_have_one_name() -> None:
    assert list(STAGE_NAMED.values()) == list(STAGES)
    assert len({stage.done for stage in STAGES}) == len(STAGES)
