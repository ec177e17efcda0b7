"""All or nothing: whatever goes wrong in the middle, the model is as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate

import rankwise
from rankwise.errors import UsageError
from tests.weights.checkpoints import assert_unchanged, refused, save, values


class Half(nn.Module):
    """Fails when its first half is already loaded."""

    def __init__(self, way: str = "") -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.notes = {"seen": {"batches": 1}}
        self.count = 1
        if way == "pre-hook":
            self.second.register_load_state_dict_pre_hook(self._fail)
        if way == "post-hook":
            self.second.register_load_state_dict_post_hook(self._fail)

    def _fail(self, *_: Any) -> None:
        self.count = 2
        self.notes["seen"]["batches"] = 2
        raise ZeroDivisionError("a hook of the user's own")


class Extra(Half):
    def get_extra_state(self) -> dict[str, int]:
        return {"count": self.count}

    def set_extra_state(self, state: Any) -> None:
        self._fail()


@pytest.mark.parametrize("way", ["pre-hook", "post-hook", "extra state"])
@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("options", [{}, {"dtype": "bfloat16"}])
def test_what_fails_half_way_leaves_nothing_behind(tmp_path: Path, way: str, device: str, options: dict[str, str]) -> None:
    kind = Extra if way == "extra state" else Half
    path = save(tmp_path / "last.pt", kind().state_dict())
    with torch.device(device):
        model = kind(way)
    parameters = dict(model.named_parameters())
    before = values(model)

    with pytest.raises(ZeroDivisionError) as caught:
        rankwise.load_weights(model, path, **options)

    assert "nothing in the model was changed" in caught.value.__notes__
    assert (model.count, model.notes) == (1, {"seen": {"batches": 1}})
    assert all(parameter is parameters[name] for name, parameter in model.named_parameters())
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    if device == "cpu":
        assert_unchanged(model, before)
    else:
        assert all(parameter.is_meta for parameter in model.parameters())


def test_a_hook_that_takes_a_value_away_changes_nothing(tmp_path: Path) -> None:
    model = Half()
    model.second.register_load_state_dict_pre_hook(lambda module, state, prefix, *rest: state.pop(f"{prefix}weight"))

    found = refused(model, save(tmp_path / "last.pt", Half().state_dict()))

    assert found.code == "RW734"
    assert "second.weight" in found.summary


class Expanded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.register_buffer("row", torch.zeros(1, 3).expand(4, 3))


def test_an_expanded_buffer_is_filled_where_its_rows_are_one(tmp_path: Path) -> None:
    saved, model = Expanded(), Expanded()
    saved.row = torch.arange(3.0).expand(4, 3)

    rankwise.load_weights(model, save(tmp_path / "last.pt", saved.state_dict()))

    assert torch.equal(model.row, saved.row)
    assert torch.equal(model.first.weight, saved.first.weight)


def test_an_expanded_buffer_whose_rows_differ_in_the_checkpoint_is_refused(tmp_path: Path) -> None:
    state = {**Expanded().state_dict(), "row": torch.arange(12.0).reshape(4, 3)}

    assert refused(Expanded(), save(tmp_path / "last.pt", state)).code == "RW737"


class Shared(nn.Module):
    """Two parameters over one memory, which are no tied parameter for torch."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.one = nn.Parameter(torch.zeros(4, 4))
        memory = self.one.data
        views = {"same": memory, "transposed": memory.t(), "part": memory[1:3], "shifted": memory.view(-1)[2:10]}
        self.other = nn.Parameter(views[way])


@pytest.mark.parametrize("way", ["same", "transposed", "part", "shifted"])
def test_memory_that_two_parameters_share_gets_one_value_or_none(tmp_path: Path, way: str) -> None:
    saved, model = Shared(way), Shared(way)
    with torch.no_grad():
        saved.one.copy_(torch.arange(16.0).view(4, 4))
    good = save(tmp_path / "good.pt", saved.state_dict())
    bad = save(tmp_path / "bad.pt", {"one": saved.one.data, "other": torch.ones_like(saved.other.data) * 7})

    found = refused(model, bad)
    rankwise.load_weights(model, good)

    assert found.code == "RW737"
    assert torch.equal(model.one, saved.one) and torch.equal(model.other, saved.other)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(2, 2, bias=False)
        self.other = nn.Linear(2, 2, bias=False)
        self.other.weight = self.one.weight


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        (torch.full((2, 2), torch.nan), torch.full((2, 2), torch.nan), True),
        (torch.zeros(2, 2), -torch.zeros(2, 2), False),
        (torch.ones(2, 2), torch.ones(2, 2).half(), True),
        (torch.ones(2, 2), torch.zeros(2, 2), False),
    ],
)
def test_tied_names_have_the_same_bits_or_are_refused(tmp_path: Path, one: torch.Tensor, other: torch.Tensor, is_same: bool) -> None:
    path = save(tmp_path / "last.pt", {"one.weight": one, "other.weight": other})

    if is_same:
        rankwise.load_weights(Tied(), path)
    else:
        assert refused(Tied(), path).code == "RW737"


def test_extra_state_below_a_prefix_with_tensors_in_it(tmp_path: Path) -> None:
    class Counting(nn.Linear):
        kept: Any = None

        def get_extra_state(self) -> Any:
            return self.kept

        def set_extra_state(self, state: Any) -> None:
            self.kept = state

    saved, model = nn.Sequential(Counting(2, 2)), nn.Sequential(Counting(2, 2))
    saved[0].kept = {"scale": torch.ones(3), "pair": (1, 2)}

    rankwise.load_weights(model, save(tmp_path / "last.pt", {f"model.{name}": value for name, value in saved.state_dict().items()}))

    assert torch.equal(model[0].kept["scale"], torch.ones(3))
    assert model[0].kept["pair"] == (1, 2)


def test_an_extra_state_that_was_not_built_is_not_handed_over(tmp_path: Path) -> None:
    class Holding(nn.Linear):
        def get_extra_state(self) -> Any:
            return {"path": Path("a")}

        def set_extra_state(self, state: Any) -> None:
            raise AssertionError(state)

    found = refused(Holding(2, 2), save(tmp_path / "last.pt", Holding(2, 2).state_dict()), tensors_only=True)

    assert found.code == "RW740"


class Keeping(nn.Linear):
    kept: Any = None

    def get_extra_state(self) -> Any:
        return self.kept

    def set_extra_state(self, state: Any) -> None:
        self.kept = state


@pytest.mark.parametrize("before", [None, {}, torch.zeros(0), torch.zeros(5, dtype=torch.uint8)])
@pytest.mark.parametrize("after", [torch.ones(3), {"scale": torch.ones(2)}, 7, None])
def test_extra_state_may_become_of_another_kind_while_it_trains(tmp_path: Path, before: Any, after: Any) -> None:
    saved, model = nn.Sequential(Keeping(2, 2)), nn.Sequential(Keeping(2, 2))
    saved[0].kept, model[0].kept = after, before

    rankwise.load_weights(model, save(tmp_path / "last.pt", saved.state_dict()))

    assert torch.equal(model[0].weight, saved[0].weight)
    assert repr(model[0].kept) == repr(after)


@pytest.mark.parametrize("kept", [torch.ones(3), {"scale": 1}])
def test_extra_state_below_the_prefix_that_was_asked_for(tmp_path: Path, kept: Any) -> None:
    saved, model = Keeping(2, 2), Keeping(2, 2)
    saved.kept = kept
    state = {f"{who}.{name}": value for who in ("student", "teacher") for name, value in saved.state_dict().items()}

    rankwise.load_weights(model, save(tmp_path / "last.pt", state), prefix="student.")

    assert repr(model.kept) == repr(kept)


def test_extra_state_that_is_missing_has_to_be_allowed(tmp_path: Path) -> None:
    model = nn.Sequential(Keeping(2, 2))
    path = save(tmp_path / "last.pt", nn.Sequential(nn.Linear(2, 2)).state_dict())

    assert refused(model, path).code == "RW734"
    rankwise.load_weights(model, path, allow_missing=["*_extra_state"])


def test_a_model_that_is_split_over_ranks_is_to_be_filled_before(tmp_path: Path) -> None:
    path, model = save(tmp_path / "last.pt", nn.Linear(3, 2).state_dict()), nn.Linear(3, 2)
    mesh = DeviceMesh("cpu", [0], _init_backend=False, _rank=0)
    model.weight = nn.Parameter(DTensor.from_local(model.weight.detach(), mesh, [Replicate()], run_check=False))

    with pytest.raises(UsageError, match="weight is a DTensor") as raised:
        rankwise.load_weights(model, path)

    assert "before fully_shard" in raised.value.finding.next[0]
