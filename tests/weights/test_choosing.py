"""Which of the tensors in a checkpoint are the weights: never a guess, never the first one, never what only has the right shapes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import rankwise
from rankwise.weights import choosing
from rankwise.weights.converting import convert_to_safetensors
from rankwise.weights.matching import fit
from tests.weights.checkpoints import refused, save


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))


def weights() -> dict[str, torch.Tensor]:
    return net().state_dict()


def other() -> dict[str, torch.Tensor]:
    return nn.Linear(7, 7).state_dict()


@pytest.mark.parametrize(
    "layout",
    [
        lambda: {"generator_a": weights(), "generator_b": weights()},
        lambda: {"model": weights(), "model2": weights()},
        lambda: {"A": {"model": weights()}, "B": {"model": weights()}},
        lambda: {"model": weights(), "state_dict": weights()},
        lambda: {"model": weights(), "best_model": weights()},
        lambda: {"student": weights(), "teacher": weights()},
        lambda: {"semantic": weights(), "instance": weights()},
        lambda: {"ema": weights(), "swa": weights()},
        lambda: {"models": [weights(), weights()]},
        lambda: {"params": weights(), "m": weights(), "v": weights()},
        lambda: {0: weights(), "0": weights()},
    ],
)
def test_several_sets_that_fit_are_listed_and_none_is_taken(tmp_path: Path, layout: Any) -> None:
    found = refused(net(), save(tmp_path / "last.pt", layout()))

    assert found.code == "RW735"
    assert found.next[0].count("key=") > 1


@pytest.mark.parametrize("key", ["momentum", "momentum_buffer", "exp_avg", "grads", "gradients", "optimizer_state", "velocity", "adam_m"])
def test_what_is_known_to_be_no_weights_is_never_taken(tmp_path: Path, key: str) -> None:
    alone = refused(net(), save(tmp_path / "alone.pt", {key: weights(), "epoch": 3}))
    nested = refused(net(), save(tmp_path / "nested.pt", {"run": {key: weights()}}))
    beside = refused(net(), save(tmp_path / "beside.pt", {"model": other(), key: weights()}))
    flat = refused(net(), save(tmp_path / "flat.pt", {f"{key}.{name}": tensor for name, tensor in weights().items()}))

    assert [alone.code, nested.code, beside.code, flat.code] == ["RW735", "RW735", "RW734", "RW734"]
    assert f"key={key!r}" in alone.next[0]


def test_an_optimizers_state_is_known_by_what_it_is_made_of(tmp_path: Path) -> None:
    moments = {"state": weights(), "param_groups": [{"lr": 0.1}]}

    assert refused(net(), save(tmp_path / "last.pt", {"anything": moments})).code == "RW735"
    assert refused(net(), save(tmp_path / "lists.pt", {"things": [moments]})).code == "RW735"


def test_whoever_names_a_key_gets_what_is_there(tmp_path: Path) -> None:
    state = weights()
    model = net()

    rankwise.load_weights(model, save(tmp_path / "last.pt", {"momentum": state}), key="momentum")

    assert torch.equal(model[0].weight, state["0.weight"])


@pytest.mark.parametrize("key", ["optimal_weights", "scheduled_net", "semantic", "stranger", "momentum_encoder"])
def test_a_key_that_only_sounds_like_training_state_loads(tmp_path: Path, key: str) -> None:
    state = weights()
    model = net()

    report = rankwise.load_weights(model, save(tmp_path / "last.pt", {key: state, "other": other()}))

    assert report.key == key
    assert torch.equal(model[0].weight, state["0.weight"])


def test_a_wrong_model_beside_something_that_fits_is_not_passed_over(tmp_path: Path) -> None:
    path = save(tmp_path / "last.pt", {"model": other(), "snapshot": weights()})

    found = refused(net(), path)
    rankwise.load_weights(net(), path, key="snapshot")

    assert found.code == "RW734"
    assert "under 'model'" in found.why and "key='snapshot'" in found.next[0]


def test_a_part_of_the_model_is_that_part_whatever_its_name_means_elsewhere(tmp_path: Path) -> None:
    """Saved part by part, and one part is called `scaler`."""
    model = nn.ModuleDict({"body": nn.Linear(4, 4), "scaler": nn.Linear(4, 1)})
    saved = nn.ModuleDict({"body": nn.Linear(4, 4), "scaler": nn.Linear(4, 1)})

    rankwise.load_weights(model, save(tmp_path / "last.pt", {name: part.state_dict() for name, part in saved.items()}))

    assert torch.equal(model["scaler"].weight, saved["scaler"].weight)


def test_one_dictionary_under_two_keys_is_one(tmp_path: Path) -> None:
    state = weights()
    model = net()

    rankwise.load_weights(model, save(tmp_path / "last.pt", {"model": state, "best": state}))

    assert torch.equal(model[0].weight, state["0.weight"])


@pytest.mark.parametrize(
    "layout",
    [
        lambda: {**weights(), "0": {"weight": torch.zeros(4, 4)}},
        lambda: {"net.0.weight": torch.zeros(4, 4), **{f"net.module.{name}": tensor for name, tensor in weights().items()}},
    ],
)
def test_two_tensors_of_one_name_are_not_chosen_between(tmp_path: Path, layout: Any) -> None:
    assert refused(net(), save(tmp_path / "last.pt", layout())).code == "RW734"


def test_a_prefix_under_which_two_tensors_fall_together(tmp_path: Path) -> None:
    state = {**{f"model.{name}": tensor for name, tensor in weights().items()}, "module.model.0.weight": torch.zeros(4, 4)}

    assert refused(net(), save(tmp_path / "last.pt", state), prefix="model.").code == "RW734"


def test_a_part_that_fits_is_named_with_its_prefix(tmp_path: Path) -> None:
    state = {**{f"model.{name}": tensor for name, tensor in weights().items()}, "loss.weight": torch.zeros(3)}

    found = refused(net(), save(tmp_path / "last.pt", {"state_dict": state}))

    assert found.code == "RW734"
    assert "prefix='model.'" in found.next[0]


@pytest.mark.parametrize("beside", [{"hyper_parameters": {"class_weights": torch.ones(2)}}, {"norm": {"mean": torch.ones(3)}}])
def test_a_few_numbers_beside_the_weights_are_not_nearer_than_these(tmp_path: Path, beside: dict[str, Any]) -> None:
    state = {**{f"model.{name}": tensor for name, tensor in weights().items()}, "loss.weight": torch.zeros(3)}

    found = refused(net(), save(tmp_path / "last.ckpt", {**beside, "state_dict": state}))

    assert "'state_dict'" in found.why
    assert "prefix='model.'" in found.next[0]


def test_parts_with_too_few_names_are_not_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str | None] = []

    def counted(slots: Any, tensors: Any, rules: Any) -> Any:
        tried.append(rules.prefix)
        return fit(slots, tensors, rules)

    monkeypatch.setattr(choosing, "fit", counted)
    state = {f"blocks.{number}.{name}": value for number in range(50) for name, value in nn.Linear(2, 2).state_dict().items()}

    assert refused(nn.Sequential(*(nn.Linear(2, 3) for _ in range(20))), save(tmp_path / "last.pt", state)).code == "RW734"
    assert tried == [None, "blocks."]


def test_an_optimizers_moments_under_dotted_names_are_not_offered_as_weights(tmp_path: Path) -> None:
    """Megatron's distributed checkpoints hold `optimizer.state.exp_avg.0.weight` beside `0.weight`."""
    moments = {f"optimizer.state.{kind}.{name}": tensor for kind in ("exp_avg", "exp_avg_sq") for name, tensor in weights().items()}

    found = refused(net(), save(tmp_path / "last.pt", weights() | moments))

    assert found.code == "RW734"
    assert "8 names of the checkpoint are unknown to the model" in found.summary
    assert "prefix=" not in "".join(found.next)


@pytest.mark.parametrize(
    "beside",
    [
        *("0.weight_scale_inv", "0.weight_scale", "0.scale_weight", "0.input_scale", "0.scales", "0.SCB", "0.weight.absmax"),
        *("0.lora_A", "0.lora_B.default.weight"),
    ],
)
def test_what_changes_the_weights_is_not_offered_to_be_left_out(tmp_path: Path, beside: str) -> None:
    found = refused(net(), save(tmp_path / "last.pt", weights() | {beside: torch.ones(1)}))

    assert "allow_unexpected" not in "".join(found.next)
    assert ("merge_and_unload" if "lora" in beside else "quantized") in found.next[0]


def test_float8_is_not_widened_without_its_scale(tmp_path: Path) -> None:
    state = weights()
    state["0.weight"] = state["0.weight"].to(torch.float8_e4m3fn)
    path = save(tmp_path / "last.pt", state | {"0.weight_scale_inv": torch.ones(1, 1)})

    assert "0.weight is float8_e4m3fn" in refused(net(), path, allow_unexpected=["*_scale_inv"]).summary
    assert rankwise.load_weights(net(), save(tmp_path / "unscaled.pt", state)).converted == {"0.weight": "float8_e4m3fn → float32"}


def test_one_of_several_files_is_told_to_be_one(tmp_path: Path) -> None:
    part = {name: tensor for name, tensor in weights().items() if name.startswith("0.")}

    found = refused(net(), save(tmp_path / "pytorch_model-00001-of-00002.bin", part))

    assert str(tmp_path) in found.next[0]
    assert "allow_missing" not in "".join(found.next)
    assert "allow_missing" in "".join(refused(net(), save(tmp_path / "pytorch_model-00001-of-00001.bin", part)).next)


def test_a_checkpoint_of_a_part_of_the_model_is_told_as_that(tmp_path: Path) -> None:
    """A trained backbone, and a model with a new head on top of it."""
    model = nn.ModuleDict({"backbone": net(), "head": nn.Linear(2, 5)})

    path = save(tmp_path / "last.pt", {f"module.{name}": tensor for name, tensor in weights().items()})

    assert "model.get_submodule('backbone')" in refused(model, path, allow_missing=["head.*"]).next[0]
    assert rankwise.load_weights(model.get_submodule("backbone"), path).loaded == 4


@pytest.mark.parametrize("prefix", ["model", "model."])
def test_a_prefix_is_of_whole_parts(tmp_path: Path, prefix: str) -> None:
    state = {f"{part}.{name}": tensor for part in ("model", "model_ema") for name, tensor in weights().items()}
    path, trained = save(tmp_path / "last.pt", state), net()

    rankwise.load_weights(trained, path, prefix=prefix)
    convert_to_safetensors(path, tmp_path / "plain.safetensors", prefix=prefix)

    assert torch.equal(trained[0].weight, state["model.0.weight"])
    assert rankwise.load_weights(net(), tmp_path / "plain.safetensors").removed_prefixes == ()


def test_a_prefix_that_no_name_has_is_told(tmp_path: Path) -> None:
    found = refused(
        net(), save(tmp_path / "last.pt", {f"net.{name}": tensor for name, tensor in weights().items()}), prefix="ne", allow_missing=["*"]
    )

    assert (found.code, found.why) == ("RW735", "they begin with net")


def test_a_head_of_another_number_of_classes_may_be_left_as_it_is(tmp_path: Path) -> None:
    model, path = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 9)), save(tmp_path / "last.pt", weights())

    assert "allow_missing=" in refused(model, path).next[0]
    assert rankwise.load_weights(model, path, allow_missing=["2.*"]).left_alone == ("2.weight", "2.bias")


@pytest.mark.parametrize("key", ["model", "net", "params"])
def test_an_average_beside_weights_that_do_not_fit_is_not_taken_without_a_word(tmp_path: Path, key: str) -> None:
    path = save(tmp_path / "last.pt", {key: other(), "ema": weights()})

    assert "key='ema'" in refused(net(), path).next[0]
    assert rankwise.load_weights(net(), path, key="ema").key == "ema"
    assert rankwise.load_weights(net(), save(tmp_path / "gan.pt", {"discriminator": other(), "ema": weights()})).key == "ema"


@pytest.mark.parametrize("key", ["teacher", "ema"])
@pytest.mark.parametrize("outer", [None, "model"])
def test_weights_beside_the_key_of_others_are_not_passed_over(tmp_path: Path, key: str, outer: str | None) -> None:
    """`state = model.state_dict(); state["teacher"] = teacher.state_dict()`: by its names alone, only the inner one fits."""
    state = weights()
    both = {**state, key: weights(), "epoch": 3}
    path = save(tmp_path / "last.pt", both if outer is None else {outer: both})
    model = net()

    found = refused(model, path)
    rankwise.load_weights(model, path, key=outer or "", allow_unexpected=[f"{key}.*"])

    assert found.code == "RW735"
    assert f"key='{outer or ''}' with allow_unexpected=['{key}.*']" in found.next[0]
    assert torch.equal(model[0].weight, state["0.weight"])


def test_dotted_names_beside_a_key_are_chosen_by_their_prefix(tmp_path: Path) -> None:
    state = weights()
    path = save(tmp_path / "last.pt", {"teacher": weights(), **{f"student.{name}": tensor for name, tensor in state.items()}})
    model = net()

    found = refused(model, path)
    rankwise.load_weights(model, path, key="", prefix="student.")

    assert "key='' with prefix='student.'" in found.next[0]
    assert torch.equal(model[0].weight, state["0.weight"])
    average = save(tmp_path / "average.pt", {"model": state, **{f"ema.{name}": tensor for name, tensor in weights().items()}})
    assert rankwise.load_weights(model, average).key == "model"


def test_a_tensor_beside_the_key_of_the_weights_is_no_other_set(tmp_path: Path) -> None:
    path = save(tmp_path / "last.pt", {"model": weights(), "best_loss": torch.tensor(1.0)})

    assert rankwise.load_weights(net(), path).key == "model"


def test_weights_beside_a_prefix_under_which_others_fit_are_offered_too(tmp_path: Path) -> None:
    """A student that has its teacher as a part, saved as one model."""
    state = weights()
    path = save(tmp_path / "last.pt", {**state, **{f"teacher.{name}": tensor for name, tensor in weights().items()}})
    model = net()

    found = refused(model, path)
    rankwise.load_weights(model, path, allow_unexpected=["teacher.*"])

    assert found.code == "RW735"
    assert "allow_unexpected=['teacher.*']" in found.next[0] and "prefix='teacher.'" in found.next[1]
    assert torch.equal(model[0].weight, state["0.weight"])
