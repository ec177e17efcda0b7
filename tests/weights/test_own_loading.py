"""Models that rename or compute while they load are asked before a checkpoint is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn

import rankwise
from rankwise.weights.converting import convert_to_safetensors
from tests.weights.checkpoints import refused, save
from tests.weights.nets import Turned


class Renamed(nn.Module):
    """Its `old` layer is called `new` now, and it knows."""

    def __init__(self) -> None:
        super().__init__()
        self.new = nn.Linear(3, 3)

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        for name in list(state):
            if name.startswith(f"{prefix}old."):
                state[f"{prefix}new.{name[len(prefix) + 4 :]}"] = state.pop(name)
        super()._load_from_state_dict(state, prefix, *rest)


class Joined(nn.Module):
    """Was two layers, is one: a hook joins them."""

    def __init__(self) -> None:
        super().__init__()
        self.both = nn.Linear(3, 4)
        self.register_load_state_dict_pre_hook(self._join)

    @staticmethod
    def _join(module: nn.Module, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        for kind in ("weight", "bias"):
            if f"{prefix}one.{kind}" in state:
                parts = [state.pop(f"{prefix}{name}.{kind}") for name in ("one", "two")]
                state[f"{prefix}both.{kind}"] = torch.cat(parts)


OLD = {"old.weight": torch.arange(9.0).view(3, 3), "old.bias": torch.arange(3.0)}
APART = {f"{name}.{kind}": torch.rand(shape) for name in ("one", "two") for kind, shape in (("weight", (2, 3)), ("bias", (2,)))}


@pytest.mark.parametrize("outer", ["", "module.", "_orig_mod.module.", "model."])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_old_names_that_the_model_renames(tmp_path: Path, outer: str, device: str) -> None:
    path = save(tmp_path / "last.pt", {"model": {f"{outer}{name}": tensor for name, tensor in OLD.items()}, "epoch": 3})
    with torch.device(device):
        model = nn.Sequential(Renamed()) if outer == "model." else Renamed()
    if outer == "model.":
        path = save(tmp_path / "last.pt", {f"model.0.{name}": tensor for name, tensor in OLD.items()})

    report = rankwise.load_weights(model, path)

    weight = dict(model.named_parameters())["0.new.weight" if outer == "model." else "new.weight"]
    assert torch.equal(weight, OLD["old.weight"])
    assert report.loaded == 2


def test_a_hook_that_joins_two_layers(tmp_path: Path) -> None:
    model = Joined()

    rankwise.load_weights(model, save(tmp_path / "last.pt", APART))

    assert torch.equal(model.both.weight, torch.cat([APART["one.weight"], APART["two.weight"]]))


def test_a_checkpoint_that_the_model_cannot_rename_is_refused(tmp_path: Path) -> None:
    found = refused(Renamed(), save(tmp_path / "last.pt", {"older.weight": torch.zeros(3, 3), "older.bias": torch.zeros(3)}))

    assert found.code == "RW734"
    assert "new.weight" in found.why and "older.weight" in found.why


def test_a_wrong_shape_under_an_old_name_is_refused(tmp_path: Path) -> None:
    assert refused(Renamed(), save(tmp_path / "last.pt", {**OLD, "old.bias": torch.zeros(4)})).code == "RW734"


def test_old_and_new_names_in_one_file_are_two_sets(tmp_path: Path) -> None:
    found = refused(Renamed(), save(tmp_path / "last.pt", {"a": Renamed().state_dict(), "b": OLD}))

    assert found.code == "RW735"
    assert "key='a'" in found.next[0] and "key='b'" in found.next[0]


def test_old_numbers_that_become_infinite_are_refused(tmp_path: Path) -> None:
    state = {"old.weight": torch.full((3, 3), 1e300, dtype=torch.float64), "old.bias": torch.zeros(3)}

    assert "not finite" in refused(Renamed(), save(tmp_path / "last.pt", state)).summary


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_batch_norm_without_its_counter_as_torch_0_4_wrote_it(tmp_path: Path, device: str) -> None:
    saved = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    saved(torch.randn(4, 2))
    path = save(tmp_path / "last.pt", {name: value for name, value in saved.state_dict().items() if "num_batches" not in name})
    with torch.device(device):
        model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))

    report = rankwise.load_weights(model, path)

    assert torch.equal(model[1].running_mean, saved[1].running_mean)
    assert (model[1].num_batches_tracked.item(), report.left_alone) == (0, ("1.num_batches_tracked",))


def test_a_missing_running_mean_is_still_missing(tmp_path: Path) -> None:
    state = {name: value for name, value in nn.BatchNorm1d(3).state_dict().items() if name in ("weight", "bias", "running_var")}

    assert "2 of 5 names" in refused(nn.BatchNorm1d(3), save(tmp_path / "last.pt", state)).summary


@pytest.mark.filterwarnings("ignore:.*weight_norm.*is deprecated")
@pytest.mark.parametrize(("saved_as", "wanted"), [("old", "new"), ("new", "old"), ("new", "new"), ("old", "old")])
@pytest.mark.parametrize("outer", ["", "module."])
def test_weight_norm_of_either_kind(tmp_path: Path, saved_as: str, wanted: str, outer: str) -> None:
    kinds = {"old": nn.utils.weight_norm, "new": nn.utils.parametrizations.weight_norm}
    saved, model = (nn.Sequential(kinds[kind](nn.Linear(3, 4)), nn.ReLU(), nn.Linear(4, 2)) for kind in (saved_as, wanted))
    path = save(tmp_path / "last.pt", {"generator": {f"{outer}{name}": value for name, value in saved.state_dict().items()}})

    rankwise.load_weights(model, path)

    x = torch.randn(5, 3)
    assert torch.equal(model(x), saved(x))


@pytest.mark.filterwarnings("ignore:.*weight_norm.*is deprecated")
def test_weight_norm_that_the_model_has_not_is_told_how(tmp_path: Path) -> None:
    path = save(tmp_path / "last.pt", nn.Sequential(nn.utils.weight_norm(nn.Linear(3, 4))).state_dict())

    assert "parametrizations.weight_norm" in refused(nn.Sequential(nn.Linear(3, 4)), path).next[0]


@pytest.mark.parametrize("outer", ["", "module", "_orig_mod", "model"])
@pytest.mark.parametrize("key", [None, "state_dict"])
@pytest.mark.parametrize("form", ["torch", "safetensors"])
def test_a_module_is_told_the_version_it_was_saved_in(tmp_path: Path, outer: str, key: str | None, form: str) -> None:
    saved = nn.Sequential(Turned(), nn.Linear(2, 2))
    around = nn.ModuleDict({outer: saved}) if outer else saved
    path = save(tmp_path / "last.pt", {key: around.state_dict()} if key else around.state_dict())
    if form == "safetensors":
        convert_to_safetensors(path, tmp_path / "last.safetensors", key=key)
        path = tmp_path / "last.safetensors"
    model = nn.Sequential(Turned(), nn.Linear(2, 2))
    with torch.no_grad():
        model[0].weight.zero_()

    rankwise.load_weights(model, path)

    assert torch.equal(model[0].weight, Turned().weight)


def test_a_folder_of_dcp_which_keeps_no_versions_is_of_the_models_own(tmp_path: Path) -> None:
    dcp.save({"model": Turned().state_dict()}, checkpoint_id=tmp_path / "dcp", no_dist=True)
    model = Turned()
    with torch.no_grad():
        model.weight.zero_()

    rankwise.load_weights(model, tmp_path / "dcp")

    assert torch.equal(model.weight, Turned().weight)


def test_a_state_dict_without_versions_is_an_old_one_as_for_torch(tmp_path: Path) -> None:
    model = Turned()

    rankwise.load_weights(model, save(tmp_path / "last.pt", dict(Turned().state_dict())))

    assert torch.equal(model.weight, Turned().weight.T)


class WithoutAssign(nn.Linear):
    def load_state_dict(self, state_dict: Any, strict: bool = True) -> Any:
        return super().load_state_dict(state_dict, strict)


class WithoutOptions(nn.Module):
    """Shows only what is within, as classes around another model do."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def state_dict(self) -> Any:  # type: ignore[override]
        return self.inner.state_dict()

    def load_state_dict(self, state_dict: Any) -> None:  # type: ignore[override]
        self.inner.load_state_dict(state_dict)


class TakesWhatItKnows(nn.Linear):
    """Loads what fits and does not say what was left out."""

    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
        super().load_state_dict({name: value for name, value in state_dict.items() if name in self.state_dict()}, strict=False)


@pytest.mark.parametrize("make", [lambda: WithoutAssign(3, 3), WithoutOptions, lambda: TakesWhatItKnows(3, 3)])
@pytest.mark.parametrize("outer", ["", "module."])
def test_methods_of_the_users_that_take_less_than_torchs(tmp_path: Path, make: Any, outer: str) -> None:
    saved, model = make(), make()

    rankwise.load_weights(model, save(tmp_path / "last.pt", {outer + name: value for name, value in saved.state_dict().items()}))

    assert all(torch.equal(value, saved.state_dict()[name]) for name, value in model.state_dict().items())


def test_a_method_that_does_not_say_what_it_took_is_not_believed(tmp_path: Path) -> None:
    path = save(tmp_path / "last.pt", {"other.weight": torch.ones(3, 3)})

    assert refused(TakesWhatItKnows(3, 3), path).code == "RW734"


class Showing(nn.Module):
    """Shows more than it loads, as quantized layers do that keep their scales beside the weight."""

    def __init__(self, shown: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4))
        self.scale = torch.zeros(2)
        self._shown = {"scale": lambda: self.scale, "again": lambda: self.weight}[shown]
        self._name = shown
        self.register_state_dict_post_hook(lambda module, state, prefix, _: state.update({prefix + self._name: self._shown()}))


def test_what_a_model_shows_and_does_not_load_is_not_passed_over(tmp_path: Path) -> None:
    saved, model = nn.Sequential(Showing("scale")), nn.Sequential(Showing("scale"))
    saved[0].scale.fill_(3)

    found = refused(model, save(tmp_path / "last.pt", saved.state_dict()))

    assert found.code == "RW734"
    assert "left 0.scale without a value" in found.summary


def test_a_second_name_that_a_model_shows_for_what_it_loads_is_fine(tmp_path: Path) -> None:
    saved, model = Showing("again"), Showing("again")
    nn.init.ones_(saved.weight)

    rankwise.load_weights(model, save(tmp_path / "last.pt", saved.state_dict()))

    assert torch.equal(model.weight, saved.weight)


def test_patterns_that_leave_out_everything_still_load_what_a_model_renames(tmp_path: Path) -> None:
    path = save(tmp_path / "last.pt", {f"module.{name}": tensor for name, tensor in OLD.items()})
    model = Renamed()

    rankwise.load_weights(model, path, allow_missing=["*"], allow_unexpected=["*"])

    assert torch.equal(model.new.weight, OLD["old.weight"])
    other = save(tmp_path / "other.pt", {"other": torch.ones(3)})
    assert refused(model, other, allow_missing=["*"], allow_unexpected=["*"]).code == "RW734"


def test_patterns_do_not_keep_a_model_from_renaming(tmp_path: Path) -> None:
    """By its names alone the checkpoint fits, since patterns leave out what the model would rename."""
    model = nn.Sequential(Renamed(), nn.Linear(3, 2))
    path = save(tmp_path / "last.pt", {**{f"0.{name}": tensor for name, tensor in OLD.items()}, **nn.Linear(3, 2).state_dict(prefix="1.")})

    report = rankwise.load_weights(model, path, allow_missing=["*"], allow_unexpected=["*"])

    assert torch.equal(model[0].new.weight, OLD["old.weight"])
    assert not report.left_alone and not report.ignored


class FillsUp(nn.Module):
    """Leaves out what does not fit and puts its own values there, so that torch finds nothing missing."""

    def __init__(self, classes: int = 2) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(3, 3), nn.Linear(3, classes)

    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
        own = self.state_dict()
        own.update({name: value for name, value in state_dict.items() if name in own and value.shape == own[name].shape})
        return super().load_state_dict(own, strict)


@pytest.mark.parametrize(
    "state",
    [
        FillsUp(5).state_dict(),
        {name.replace("head", "fc"): value for name, value in FillsUp().state_dict().items()},
        FillsUp().body.state_dict(prefix="body."),
        nn.Linear(7, 7).state_dict(),
    ],
)
def test_what_a_model_fills_up_with_its_own_values_is_missing(tmp_path: Path, state: dict[str, torch.Tensor]) -> None:
    path = save(tmp_path / "last.pt", state)

    assert refused(FillsUp(), path).code == "RW734"
    if "body.weight" in state:
        model = FillsUp()
        report = rankwise.load_weights(model, path, allow_missing=["head.*"], allow_unexpected=["fc.*"])
        assert torch.equal(model.body.weight, state["body.weight"]) and report.left_alone == ("head.weight", "head.bias")


class PassesOver(nn.Module):
    """Copies by hand: not the head, or no buffers."""

    def __init__(self, what: str, says: Any) -> None:
        super().__init__()
        self.body, self.head, self.norm = nn.Linear(3, 3), nn.Linear(3, 2), nn.BatchNorm1d(2)
        self._what, self._says = what, says

    def load_state_dict(self, state_dict: Any, strict: bool = True) -> Any:  # type: ignore[override]
        for name, value in self.state_dict().items():
            if not name.startswith(self._what):
                value.copy_(state_dict[name])
        return self._says


@pytest.mark.parametrize(("what", "options"), [("head.weight", {}), ("head.weight", {"dtype": "float64"}), ("norm.running_mean", {})])
@pytest.mark.parametrize("says", [None, ([], [])])
def test_what_a_model_passes_over_without_a_word_is_refused(tmp_path: Path, what: str, says: Any, options: dict[str, str]) -> None:
    saved = PassesOver(what, says)
    nn.init.constant_(saved.norm.running_mean, 2)

    found = refused(PassesOver(what, says), save(tmp_path / "last.pt", saved.state_dict()), **options)

    assert f"left {what} without a value" in found.summary


class Forgives(nn.Module):
    """Takes from the list of missing names what it does not want to hear of."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm = nn.Linear(3, 3), nn.BatchNorm1d(3)
        self.register_load_state_dict_post_hook(lambda model, keys: keys.missing_keys.clear())


def test_parameters_and_buffers_that_a_hook_says_are_not_missing_are_so(tmp_path: Path) -> None:
    body, parameters = Forgives().body.state_dict(prefix="body."), dict(Forgives().named_parameters())

    assert "norm.weight" in refused(Forgives(), save(tmp_path / "body.pt", body)).why
    assert "norm.running_mean" in refused(Forgives(), save(tmp_path / "parameters.pt", parameters)).why
    report = rankwise.load_weights(Forgives(), tmp_path / "parameters.pt", allow_missing=["norm.running_*", "*.num_batches_tracked"])
    assert set(report.left_alone) >= {"norm.running_mean", "norm.running_var"}
