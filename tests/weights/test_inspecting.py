"""What is in a checkpoint, as one dictionary, without reading a tensor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rankwise.weights.inspecting import inspect_checkpoint


def inspected(tmp_path: Path, thing: Any) -> dict[str, Any]:
    torch.save(thing, tmp_path / "net.pt")
    return inspect_checkpoint(tmp_path / "net.pt")


def test_a_tensor_is_named_with_its_kind_its_size_and_whose_memory_it_shares(tmp_path: Path) -> None:
    weight = torch.ones(4, 2)
    found = inspected(tmp_path, {"emb.weight": weight, "head.weight": weight, "head.bias": torch.ones(4, dtype=torch.float16)})

    (state,) = found["weights"]
    assert state["tensors"] == [
        {"name": "emb.weight", "dtype": "float32", "shape": [4, 2], "bytes": 32},
        {"name": "head.weight", "dtype": "float32", "shape": [4, 2], "bytes": 32, "same_as": "emb.weight"},
        {"name": "head.bias", "dtype": "float16", "shape": [4], "bytes": 8},
    ]
    assert state["parameters"] == 20 and state["kind"] == "weights"
    assert [file["bytes"] for file in found["files"]] == [(tmp_path / "net.pt").stat().st_size]


def test_a_training_checkpoint_shows_weights_state_and_the_values_beside_them(tmp_path: Path) -> None:
    model = {f"module.{name}": tensor for name, tensor in nn.Linear(2, 2).state_dict().items()}
    optimizer = {"state": {0: {"momentum_buffer": torch.ones(2, 2)}}, "param_groups": [{"lr": 0.1, "params": [0, 1]}]}
    beside = {"epoch": 3, "seed": 10**5000, "rates": [0.1, 0.2], "note": "x" * 200, "args": {"lr": 0.1}}

    found = inspected(tmp_path, {"model": model, "optimizer": optimizer, **beside})

    assert [(state["key"], state["kind"]) for state in found["weights"]] == [("model", "weights"), ("optimizer", "training state")]
    assert found["weights"][0]["prefixes"]
    shown = found["top_level"]
    assert (shown["epoch"], shown["seed"], shown["rates"], shown["args"]) == ("3", "a very large number", "list of 2", "dictionary of 1")
    assert len(shown["note"]) == 80
    json.dumps(found)


def test_what_would_run_is_told_and_not_run(tmp_path: Path) -> None:
    class Calls:
        def __reduce__(self) -> Any:
            return exec, (f"open({str(tmp_path / 'exploded')!r}, 'w')",)

    found = inspected(tmp_path, {"model": {"w": torch.ones(2)}, "extra": Calls()})

    assert any("exec" in text for text in found["would_run"]) and not (tmp_path / "exploded").exists()
    assert [tensor["name"] for tensor in found["weights"][0]["tensors"]] == ["w"]
