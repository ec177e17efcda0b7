"""Which tensor belongs to which name: whatever wrapped it, whatever it was called, and never silently nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import rankwise
from rankwise.errors import UsageError
from rankwise.weights.matching import Rules, Wanted, fit
from rankwise.weights.parameter_names import WRAPPERS
from rankwise.weights.tensor_records import CheckpointError, TensorRecord
from tests.weights.checkpoints import refused, save
from tests.weights.nets import Net, Tied

PARTS = st.sampled_from(["encoder", "0", "1", "head", "weight_g"])
NAMES = st.lists(st.lists(PARTS, min_size=1, max_size=3).map(".".join), min_size=1, max_size=6, unique=True)
LAYERS = st.lists(st.sampled_from(sorted(WRAPPERS)), max_size=4)


def slots(names: list[str]) -> dict[str, Wanted]:
    return {name: Wanted((len(name),), "float32", index) for index, name in enumerate(names)}


def records(names: Mapping[str, str]) -> dict[str, TensorRecord]:
    return {theirs: TensorRecord("float32", (len(ours),)) for ours, theirs in names.items()}


@given(NAMES, LAYERS, st.data())
@settings(max_examples=150, deadline=None)
def test_wrappers_in_any_order_and_depth_are_seen_through(names: list[str], outer: list[str], data: st.DataObject) -> None:
    wrapped = {}
    for name in names:
        parts = name.split(".")
        at = data.draw(st.integers(0, len(parts) - 1))
        inner = data.draw(LAYERS)
        wrapped[f"{name}.w"] = ".".join([*outer, *parts[:at], *inner, *parts[at:], "w"])

    found = fit(slots([f"{name}.w" for name in names]), records(wrapped), Rules())

    assert found.is_whole
    assert found.pairs == wrapped


@pytest.mark.parametrize("outer", ["", "module.", "_orig_mod.module.", "module.module."])
def test_a_module_of_the_models_own_that_is_called_module(outer: str) -> None:
    """`module.weight` and `weight` in one model: only taking off whole outer layers gets this right."""
    names = ["weight", "module.weight", "module.module.bias"]

    found = fit(slots(names), records({name: outer + name for name in names}), Rules())

    assert found.pairs == {name: outer + name for name in names}


def test_names_that_fall_together_are_never_guessed() -> None:
    found = fit(
        slots(["a.weight", "a.module.weight"]), records({"a.weight": "_orig_mod.a.weight", "a.module.weight": "a.module.weight"}), Rules()
    )

    assert not found.is_whole


def test_a_renamed_module_is_a_finding_with_both_sides_and_the_nearest_name(tmp_path: Path) -> None:
    state = {name.replace("head.", "classifier."): tensor for name, tensor in Net().state_dict().items()}

    found = refused(Net(), save(tmp_path / "last.pt", {"model": state}))

    assert found.code == "RW734"
    assert "2 of 11 names of the model are missing" in found.summary
    assert "head.weight float32[3, 16]" in found.why
    assert "nearest: classifier.weight float32[3, 16]" in found.why
    assert "under 'model'" in found.why


def test_another_shape_shows_both_shapes(tmp_path: Path) -> None:
    model = Net()
    model.head = nn.Linear(16, 10)

    found = refused(Net(), save(tmp_path / "last.pt", model.state_dict()))

    assert found.code == "RW734"
    assert "head.weight float32[3, 16]" in found.why and "head.weight float32[10, 16]" in found.why


def test_integers_do_not_become_floats_silently(tmp_path: Path) -> None:
    state = Net().state_dict()
    state["head.bias"] = torch.zeros(3, dtype=torch.int64)

    assert "head.bias int64[3]" in refused(Net(), save(tmp_path / "last.pt", state)).why


def test_another_model_altogether(tmp_path: Path) -> None:
    found = refused(Net(), save(tmp_path / "last.pt", Tied().state_dict()))

    assert found.code == "RW734"
    assert "of 11 names of the model are missing" in found.summary


def test_what_may_be_missing_has_to_be_said(tmp_path: Path) -> None:
    state = {name: tensor for name, tensor in Net().state_dict().items() if not name.startswith("head.")}
    path = save(tmp_path / "last.pt", {**state, "old.weight": torch.zeros(2)})
    model = Net()
    head = model.head.weight.clone()

    assert refused(Net(), path).code == "RW734"
    assert refused(Net(), path, allow_missing=["head.*"]).code == "RW734"
    report = rankwise.load_weights(model, path, allow_missing=["head.*"], allow_unexpected=["old.*"])

    assert report.left_alone == ("head.weight", "head.bias")
    assert report.ignored == ("old.weight",)
    assert torch.equal(model.head.weight, head)
    assert torch.equal(model.body[0].weight, state["body.0.weight"])


def test_a_prefix_chooses_a_part(tmp_path: Path) -> None:
    state = {**{f"student.{k}": v for k, v in Net().state_dict().items()}, **{f"teacher.{k}": v for k, v in Net().state_dict().items()}}
    path = save(tmp_path / "last.pt", state)
    model = Net()

    found = refused(Net(), path)
    rankwise.load_weights(model, path, prefix="teacher.")

    assert found.code == "RW735"
    assert "prefix='student.'" in found.next[0] and "prefix='teacher.'" in found.next[1]
    assert torch.equal(model.head.weight, state["teacher.head.weight"])


def test_two_that_fit_are_not_chosen_between(tmp_path: Path) -> None:
    first, second = Net().state_dict(), Net().state_dict()
    path = save(tmp_path / "last.pt", {"left": first, "right": second})
    model = Net()

    found = refused(Net(), path)
    rankwise.load_weights(model, path, key="right")

    assert found.code == "RW735"
    assert "key='left'" in " ".join(found.next) and "key='right'" in " ".join(found.next)
    assert torch.equal(model.head.weight, second["head.weight"])


def test_a_key_that_is_not_there_lists_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'ema'") as caught:
        rankwise.load_weights(Net(), save(tmp_path / "last.pt", {"model": Net().state_dict()}), key="ema")

    assert "'model'" in caught.value.finding.why


def test_only_an_optimizer_is_no_weights(tmp_path: Path) -> None:
    moments = {0: {"step": torch.tensor(1.0), "exp_avg": torch.zeros(16, 4), "exp_avg_sq": torch.zeros(16, 4)}}

    assert refused(Net(), save(tmp_path / "last.pt", {"optimizer": {"state": moments, "param_groups": []}})).code == "RW735"


def test_tied_in_the_model_and_different_in_the_checkpoint(tmp_path: Path) -> None:
    state = dict(Tied().state_dict())
    state["head.weight"] = state["head.weight"] + 1

    found = refused(Tied(), save(tmp_path / "last.pt", state))

    assert found.code == "RW737"
    assert "head.weight" in found.summary and "embedding.weight" in found.summary


def test_a_buffer_that_no_checkpoint_has_is_not_left_on_meta(tmp_path: Path) -> None:
    class WithTable(Net):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", torch.arange(4.0), persistent=False)

    path = save(tmp_path / "last.pt", WithTable().state_dict())
    with torch.device("meta"):
        model = WithTable()
    with pytest.raises(CheckpointError) as caught:
        rankwise.load_weights(model, path)
    model.table = torch.arange(4.0)
    rankwise.load_weights(model, path)

    assert caught.value.finding.code == "RW738"
    assert "table" in caught.value.finding.summary
    assert not model.head.weight.is_meta


def test_a_tensor_without_plain_bytes_is_named(tmp_path: Path) -> None:
    model = nn.Linear(3, 3, bias=False)

    found = refused(model, save(tmp_path / "last.pt", {"weight": torch.eye(3).to_sparse()}))

    assert found.code == "RW740"
    assert "sparse" in found.why


def test_two_parameters_never_share_the_files_memory(tmp_path: Path) -> None:
    """Tied when saved, not tied in the model: writing to one must not change the other, nor the file."""
    shared = torch.ones(4, 4)
    path = save(tmp_path / "last.pt", {"0.weight": shared, "1.weight": shared})
    before = path.read_bytes()
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))

    rankwise.load_weights(model, path)
    with torch.no_grad():
        model[0].weight.fill_(7)

    assert torch.equal(model[1].weight, torch.ones(4, 4))
    assert path.read_bytes() == before


def test_extra_state_of_a_module_comes_along(tmp_path: Path) -> None:
    class Counting(nn.Linear):
        seen = 0

        def get_extra_state(self) -> dict[str, int]:
            return {"seen": self.seen}

        def set_extra_state(self, state: dict[str, int]) -> None:
            self.seen = state["seen"]

    saved = nn.Sequential(Counting(2, 2))
    saved[0].seen = 5
    model = nn.Sequential(Counting(2, 2))

    rankwise.load_weights(model, save(tmp_path / "last.pt", nn.DataParallel(saved).state_dict()))

    assert model[0].seen == 5


def test_a_model_that_loads_in_its_own_way_is_asked_to(tmp_path: Path) -> None:
    class Doubling(nn.Linear):
        def _load_from_state_dict(self, state: dict[str, torch.Tensor], prefix: str, *rest: object) -> None:
            state[f"{prefix}weight"] = state[f"{prefix}weight"] * 2
            super()._load_from_state_dict(state, prefix, *rest)

    model = nn.Sequential(Doubling(2, 2))
    saved = nn.Sequential(nn.Linear(2, 2))

    rankwise.load_weights(model, save(tmp_path / "last.pt", nn.DataParallel(saved).state_dict()))

    assert torch.equal(model[0].weight, saved[0].weight * 2)


@pytest.mark.parametrize("outer", ["module.", "_orig_mod.module.", "net."])
def test_patterns_that_leave_out_everything_still_load_what_there_is(tmp_path: Path, outer: str) -> None:
    """As they are, no names agree, and the patterns allow even that; the names without what is around them are the better fit."""
    trained, model = Net(), Net()
    state = {"model": {outer + name: tensor for name, tensor in trained.state_dict().items()}, "hyper": {"classes": torch.ones(3)}}

    report = rankwise.load_weights(model, save(tmp_path / "last.pt", state), allow_missing=["*"], allow_unexpected=["*"])

    assert (report.loaded, report.key) == (len(trained.state_dict()), "model")
    assert torch.equal(model.head.weight, trained.head.weight)


def test_patterns_that_leave_out_everything_do_not_make_another_model_fit(tmp_path: Path) -> None:
    path = save(tmp_path / "last.pt", {"other.weight": torch.ones(3), "head.weight": torch.ones(7, 16)})

    found = refused(Net(), path, allow_missing=["*"], allow_unexpected=["*"])

    assert found.code == "RW734"
    assert "10 of 11 names of the model are missing" in found.summary


@pytest.mark.parametrize("pattern", ["aux.*", "module.aux.*"])
def test_a_pattern_may_name_what_is_unexpected_as_the_checkpoint_does(tmp_path: Path, pattern: str) -> None:
    """The error shows the checkpoint's own names."""
    state = {f"module.{name}": tensor for name, tensor in Net().state_dict().items()}
    path = save(tmp_path / "last.pt", {**state, "module.aux.weight": torch.ones(3)})

    assert rankwise.load_weights(Net(), path, allow_unexpected=[pattern]).ignored == ("aux.weight",)


def test_a_pattern_for_what_is_missing_need_not_know_how_the_model_is_wrapped(tmp_path: Path) -> None:
    path = save(tmp_path / "last.pt", {name: tensor for name, tensor in Net().state_dict().items() if not name.startswith("head.")})

    report = rankwise.load_weights(nn.DataParallel(Net()), path, allow_missing=["head.*"])

    assert report.left_alone == ("module.head.weight", "module.head.bias")


class Masked(nn.Module):
    def __init__(self, kind: torch.dtype, shape: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full(shape, 2.5))
        self.register_buffer("mask", torch.ones(2, 2).triu().to(kind))


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_what_older_torch_had_instead_of_bool_and_of_no_dimensions(tmp_path: Path, device: str) -> None:
    saved = Masked(torch.uint8, (1,))
    nn.init.ones_(saved.scale)
    with torch.device(device):
        model = Masked(torch.bool)

    rankwise.load_weights(model, save(tmp_path / "last.pt", saved.state_dict()))

    assert (model.scale.shape, model.scale.item(), model.mask.dtype) == ((), 1.0, torch.bool)
    assert torch.equal(model.mask, saved.mask.bool())
    saved.mask[0, 0] = 2
    assert "which bool cannot hold" in refused(Masked(torch.bool), save(tmp_path / "other.pt", saved.state_dict())).summary
    assert refused(Masked(torch.bool), save(tmp_path / "two.pt", Masked(torch.bool, (2,)).state_dict())).code == "RW734"
