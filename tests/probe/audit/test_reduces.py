"""What is reduced is labelled, without going through all parameters at every call."""

from __future__ import annotations

import weakref

import pytest
import torch

from rankwise.probe.audit import reduces


def test_parameters_are_not_gone_through_for_every_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a check that all ranks have the same weights: a broadcast of a copy of each."""
    parameters = [torch.nn.Parameter(torch.ones(3)) for _ in range(400)]
    walks = []

    def walk() -> list[tuple[str, torch.nn.Parameter]]:
        walks.append(1)
        return [(str(i), p) for i, p in enumerate(parameters)]

    monkeypatch.setattr(reduces, "_parameters", walk)
    monkeypatch.setattr(reduces, "_misses", 0)
    copies = [p.detach().clone() for p in parameters]

    assert not any(reduces._parameter_label(copy) for copy in copies)
    assert len(walks) < 60


def test_gradients_reduced_one_by_one_are_all_labelled(monkeypatch: pytest.MonkeyPatch) -> None:
    parameters = [torch.nn.Parameter(torch.ones(3)) for _ in range(50)]
    monkeypatch.setattr(reduces, "optimized", [weakref.ref(p) for p in parameters])
    monkeypatch.setattr(reduces, "_misses", 0)
    for _ in range(3):
        for p in parameters:
            p.grad = torch.ones(3)
        labels = [reduces._parameter_label(p.grad) for p in parameters if p.grad is not None]
        assert labels == [f"gradient of parameter {i}" for i in range(50)]
