"""Weights onto a real GPU: wherever the model is, wherever they were saved."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import rankwise
from tests.gpu.test_nccl import has_gpu
from tests.weights.nets import Net, Tied

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not has_gpu(), reason="no NVIDIA GPU here")]


@pytest.mark.parametrize("saved_on", ["cpu", "cuda"])
@pytest.mark.parametrize("loaded_on", ["cpu", "cuda", "meta"])
def test_weights_go_from_any_device_to_any(tmp_path: Path, saved_on: str, loaded_on: str) -> None:
    saved = Net().to(saved_on)
    torch.save({"model": torch.nn.DataParallel(saved).state_dict()}, tmp_path / "last.pt")
    with torch.device(loaded_on):
        model = Net()

    rankwise.load_weights(model, tmp_path / "last.pt", device="cuda")

    assert {tensor.device.type for tensor in model.state_dict().values()} == {"cuda"}
    assert all(torch.equal(tensor.cpu(), saved.state_dict()[name].cpu()) for name, tensor in model.state_dict().items())
    assert model.eval()(Net.example().cuda()).is_cuda


def test_half_precision_on_the_card_needs_no_more_memory_than_the_weights(tmp_path: Path) -> None:
    state = {f"{i}.weight": torch.randn(2048, 2048) for i in range(8)}
    torch.save(state, tmp_path / "last.pt")
    with torch.device("meta"):
        model = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048, bias=False) for _ in range(8)))
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()

    rankwise.load_weights(model, tmp_path / "last.pt", device="cuda", dtype=torch.bfloat16)

    weights = sum(parameter.numel() * 2 for parameter in model.parameters())
    assert torch.cuda.max_memory_allocated() - before < weights + 2 * 2048 * 2048 * 4


def test_tied_weights_stay_tied_on_the_gpu(tmp_path: Path) -> None:
    torch.save(Tied().state_dict(), tmp_path / "last.pt")
    with torch.device("meta"):
        model = Tied()

    rankwise.load_weights(model, tmp_path / "last.pt", device="cuda")

    assert model.head.weight is model.embedding.weight
    assert model.head.weight.is_cuda
