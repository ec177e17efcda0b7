"""Letters for mixed precision: scaled, unscaled, clipped while still scaled, and the scaler's own step."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

import pytest

from rankwise.probe.audit import scaling, steps, window


@pytest.fixture(autouse=True)
def _afresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    window.close()
    monkeypatch.setattr(window, "is_scaled", False)
    monkeypatch.setattr(steps, "in_scaler", False)
    yield
    window.close()


def attached(is_enabled: bool = True) -> tuple[Any, Any]:
    class Scaler:
        def is_enabled(self) -> bool:
            return is_enabled

        def scale(self, loss: float) -> float:
            return 4 * loss

        def unscale_(self) -> None: ...

        def step(self) -> bool:
            return steps.in_scaler

    clips = types.SimpleNamespace(clip_grad_norm_=lambda x: x, clip_grad_value_=lambda x: x)
    scaling.attach(types.SimpleNamespace(GradScaler=Scaler))  # type: ignore[arg-type]
    scaling.attach_clipping(clips)  # type: ignore[arg-type]
    return Scaler(), clips


def letters() -> str:
    return "".join(window._letters)


def test_clipping_before_and_after_unscaling_has_letters_of_its_own() -> None:
    scaler, clips = attached()

    assert scaler.scale(2) == 8
    clips.clip_grad_norm_(1)
    scaler.unscale_()
    assert clips.clip_grad_value_(7) == 7

    assert letters() == "gcuC"


def test_the_step_inside_a_scaler_is_known_as_its_own_and_ends_the_scaling() -> None:
    scaler, clips = attached()
    scaler.scale(2)

    assert scaler.step() and not steps.in_scaler
    clips.clip_grad_norm_(1)
    assert letters() == "gC"


def test_a_scaler_that_is_off_changes_nothing() -> None:
    scaler, _ = attached(is_enabled=False)
    scaler.scale(2)
    scaler.unscale_()

    assert not scaler.step() and letters() == ""
