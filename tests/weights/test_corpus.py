"""Checkpoints as the real libraries write them load into a plain model, in one process, with the very bits that were saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import rankwise
from rankwise.weights.inspecting import inspect_checkpoint
from tests.weights.nets import Net, Tied

# file or folder: what load_weights is given beside it, and a prefix or word that inspect must show
PLAIN: dict[str, tuple[dict[str, Any], str]] = {
    "expected.pt": ({}, "torch zip"),
    "ddp.pt": ({}, "module."),
    "data_parallel.pt": ({}, "module."),
    "compiled.pt": ({}, "_orig_mod."),
    "ddp_of_compiled.pt": ({}, "module._orig_mod."),
    "compiled_ddp.pt": ({}, "_orig_mod.module."),
    "compiled_ddp_of_compiled.pt": ({}, "_orig_mod.module._orig_mod."),
    "compiled_inside_ddp.pt": ({}, "_orig_mod."),
    "training.pt": ({}, "optimizer"),
    "model_state_dict.pt": ({}, "model_state_dict"),
    "deepspeed_like.pt": ({}, "module"),
    "nested_deep.pt": ({}, "a.b.net"),
    "gan.pt": ({}, "generator"),
    "by_part.pt": ({}, "body"),
    "ema.pt": ({}, "AveragedModel"),
    "model_and_ema.pt": ({"key": "ema"}, "averaged"),
    "legacy.pt": ({}, "torch legacy"),
    "legacy_ddp.pt": ({}, "torch legacy"),
    "parameters.pt": ({}, "torch zip"),
    "without_crc.pt": ({}, "torch zip"),
    "views.pt": ({}, "torch zip"),
    "program.pt2": ({}, "torch.export program"),
    "plain.safetensors": ({}, "safetensors"),
    "hub_sharded": ({}, "sharded safetensors"),
    "hub_sharded/model.safetensors.index.json": ({}, "sharded safetensors"),
    "hub_sharded_bin": ({}, "sharded torch zip"),
    "accelerate_state": ({}, "safetensors"),
    "accelerate_model": ({}, "sharded safetensors"),
    "accelerate.bin": ({}, "torch zip"),
    "lightning.ckpt": ({}, "Lightning"),
    "fabric.ckpt": ({}, "torch zip"),
    "rankwise_train": ({}, "rankwise.train checkpoint"),
    "rankwise_train/last.pt": ({}, "rankwise.train checkpoint"),
    "rankwise_train/step-00000007": ({}, "rankwise.train checkpoint"),
    "rankwise_train_sharded/step-00000007": ({}, "torch.distributed.checkpoint"),
    "rankwise_train_sharded": ({}, "torch.distributed.checkpoint"),
    "rankwise_train_sharded/last.pt": ({}, "torch.distributed.checkpoint"),
    "dtensor_files": ({}, "DTensors of 2 ranks"),
    "dcp_ddp": ({}, "torch.distributed.checkpoint"),
    "dcp_fsdp1": ({}, "torch.distributed.checkpoint"),
    "dcp_fsdp2": ({}, "optimizer"),
    "dcp_fsdp2_bare": ({}, "torch.distributed.checkpoint"),
}
TIED = ["expected_tied.pt", "tied.pt", "tied.safetensors", "hub_tied"]


def expected(corpus: Path, name: str = "expected.pt") -> dict[str, torch.Tensor]:
    return torch.load(corpus / name, weights_only=True)


def assert_same(model: torch.nn.Module, wanted: dict[str, torch.Tensor]) -> None:
    got = model.state_dict()
    assert got.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert got[name].dtype == tensor.dtype
        assert torch.equal(got[name], tensor), name


@pytest.mark.parametrize("name", PLAIN)
def test_it_loads_bit_by_bit(corpus: Path, name: str) -> None:
    model = Net()

    report = rankwise.load_weights(model, corpus / name, **PLAIN[name][0])

    assert_same(model, expected(corpus))
    assert report.loaded == len(model.state_dict())
    assert not report.converted


@pytest.mark.parametrize("name", PLAIN)
def test_it_loads_into_a_model_without_memory(corpus: Path, name: str) -> None:
    with torch.device("meta"):
        model = Net()

    rankwise.load_weights(model, corpus / name, **PLAIN[name][0])

    assert_same(model, expected(corpus))
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert not any(tensor.is_meta for tensor in model.state_dict().values())


@pytest.mark.parametrize("name", PLAIN)
def test_inspect_says_what_it_is(corpus: Path, name: str) -> None:
    facts = inspect_checkpoint(corpus / name)

    assert PLAIN[name][1] in str(facts), facts["looks_like"]
    names = {tensor["name"] for weights in facts["weights"] for tensor in weights["tensors"]}
    assert any(found.endswith("weight") for found in names)
    assert not facts["would_run"]


@pytest.mark.parametrize("name", TIED)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_tied_weights_stay_one_tensor(corpus: Path, name: str, device: str) -> None:
    with torch.device(device):
        model = Tied()

    rankwise.load_weights(model, corpus / name)

    assert model.head.weight is model.embedding.weight
    assert_same(model, expected(corpus, "expected_tied.pt"))


@pytest.mark.parametrize(("name", "dtype"), [("half.pt", torch.float16), ("bfloat16.pt", torch.bfloat16)])
def test_half_precision_goes_into_the_models_own_dtype_and_is_told(corpus: Path, name: str, dtype: torch.dtype) -> None:
    model = Net()

    report = rankwise.load_weights(model, corpus / name)

    for key, tensor in expected(corpus).items():
        assert model.state_dict()[key].dtype == tensor.dtype
        assert torch.equal(model.state_dict()[key], tensor.to(dtype).to(tensor.dtype) if tensor.is_floating_point() else tensor)
    assert "→ float32" in report.converted["head.weight"]


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_dtype_can_be_asked_for(corpus: Path, device: str) -> None:
    with torch.device(device):
        model = Net()

    rankwise.load_weights(model, corpus / "ddp.pt", dtype="bfloat16")

    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert model.norm.num_batches_tracked.dtype == torch.int64
    assert torch.equal(model.head.weight, expected(corpus)["head.weight"].bfloat16())


def test_the_weights_in_training_are_taken_and_the_average_is_told(corpus: Path) -> None:
    model = Net()

    report = rankwise.load_weights(model, corpus / "model_and_ema.pt")

    assert not model.head.weight.any(), "the corpus has zeros there"
    assert (report.key, report.also_found) == ("model", ("ema",))


def test_a_wrapped_model_takes_a_checkpoint_that_was_wrapped_otherwise(corpus: Path) -> None:
    model = torch.nn.DataParallel(torch.nn.DataParallel(Net()))

    rankwise.load_weights(model, corpus / "compiled.pt")

    assert_same(model.module.module, expected(corpus))


def test_every_kind_computes_the_same(corpus: Path) -> None:
    reference = Net().eval()
    reference.load_state_dict(expected(corpus))
    wanted = reference(Net.example())
    for name, (options, _) in PLAIN.items():
        model = Net().eval()
        rankwise.load_weights(model, corpus / name, **options)
        assert torch.equal(model(Net.example()), wanted), name
