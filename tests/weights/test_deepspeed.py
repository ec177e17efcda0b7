"""DeepSpeed's folders: the pieces of all ranks become whole weights, or the finding says what is not there."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import rankwise
from rankwise.weights.inspecting import inspect_checkpoint
from tests.weights.checkpoints import refused
from tests.weights.deepspeed_files import write_zero

GROUPS = [["scale", "embedding.weight", "norm.weight"], ["norm.bias", "mix.weight", "nothing", "mix.bias"]]
SHARED = {"head.weight": "embedding.weight"}
BUFFERS = ["norm.running_mean", "norm.running_var", "norm.num_batches_tracked"]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(()))  # one number without dimensions, trained, and another that is not
        self.offset = nn.Parameter(torch.rand(()), requires_grad=False)
        self.nothing = nn.Parameter(torch.empty(0, 3))
        self.embedding = nn.Embedding(11, 6)
        self.norm = nn.BatchNorm1d(6)
        self.mix = nn.Linear(6, 5)
        self.frozen = nn.Linear(5, 5)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embedding.weight


def written(folder: Path, stage: int, ranks: int) -> tuple[Path, Net]:
    model = Net()
    return write_zero(folder / "run", model.state_dict(), stage, ranks, groups=GROUPS, buffers=BUFFERS, shared=SHARED), model


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("step_itself", [False, True])
def test_pieces_of_all_ranks_become_whole(tmp_path: Path, stage: int, ranks: int, step_itself: bool) -> None:
    folder, saved = written(tmp_path, stage, ranks)
    model = Net()

    report = rankwise.load_weights(model, folder / "global_step3" if step_itself else folder)

    assert report.looks_like[0] == f"DeepSpeed ZeRO-{stage}"
    for name, value in saved.state_dict().items():
        assert torch.equal(model.state_dict()[name], value), name


def test_inspect_shows_the_whole_weights(tmp_path: Path) -> None:
    folder, _ = written(tmp_path, 3, 2)

    (weights,) = inspect_checkpoint(folder)["weights"]

    shapes = {tensor["name"]: tensor["shape"] for tensor in weights["tensors"]}
    assert shapes["embedding.weight"] == [11, 6] and shapes["frozen.weight"] == [5, 5]


@pytest.mark.parametrize("stage", [2, 3])
def test_a_ranks_file_that_is_missing_is_named(tmp_path: Path, stage: int) -> None:
    folder, _ = written(tmp_path, stage, 3)
    (folder / "global_step3" / "zero_pp_rank_1_mp_rank_00_optim_states.pt").unlink()

    found = refused(Net(), folder)

    assert found.code == "RW736"
    assert "rank 1" in found.summary


def test_the_last_ranks_file_that_is_missing_is_noticed(tmp_path: Path) -> None:
    folder, _ = written(tmp_path, 2, 3)
    (folder / "global_step3" / "zero_pp_rank_2_mp_rank_00_optim_states.pt").unlink()

    assert refused(Net(), folder).code == "RW736"


def test_stage_2_without_the_optimizers_files_has_its_weights_whole(tmp_path: Path) -> None:
    folder, saved = written(tmp_path, 2, 2)
    for path in folder.glob("*/*optim_states.pt"):
        path.unlink()
    model = Net()

    rankwise.load_weights(model, folder)

    assert torch.equal(model.mix.weight, saved.mix.weight)


def test_a_flipped_bit_in_a_piece_is_found(tmp_path: Path) -> None:
    folder, _ = written(tmp_path, 3, 2)
    path = folder / "global_step3" / "zero_pp_rank_1_mp_rank_00_optim_states.pt"
    content = bytearray(path.read_bytes())
    at = content.index(b"data/0") + 128
    content[at] ^= 4
    path.write_bytes(content)

    assert refused(Net(), folder).code == "RW732"


def test_a_file_without_its_pickle_is_damaged(tmp_path: Path) -> None:
    folder, _ = written(tmp_path, 3, 2)
    path = folder / "global_step3" / "zero_pp_rank_1_mp_rank_00_optim_states.pt"
    path.write_bytes(path.read_bytes().replace(b"data.pkl", b"data.pkm"))

    assert refused(Net(), folder).code == "RW732"


@pytest.mark.parametrize("tag", ["../elsewhere", "gone", "", "/etc"])
def test_latest_leads_nowhere_else(tmp_path: Path, tag: str) -> None:
    folder, _ = written(tmp_path, 2, 2)
    (folder / "latest").write_text(tag)

    assert refused(Net(), folder).code == "RW736"


def test_tensor_parallel_parts_are_told(tmp_path: Path) -> None:
    folder, _ = written(tmp_path, 2, 2)
    step = folder / "global_step3"
    (step / "mp_rank_01_model_states.pt").write_bytes((step / "mp_rank_00_model_states.pt").read_bytes())

    found = refused(Net(), folder)

    assert found.code == "RW740"
    assert "2 tensor-parallel ranks" in found.summary


def test_parameters_that_lie_elsewhere_in_their_group_are_not_mixed_up(tmp_path: Path) -> None:
    """With round_robin_gradients the files contradict each other; the model's own file has the weights whole."""
    model = Net()
    folder = write_zero(tmp_path / "run", model.state_dict(), 2, 2, groups=GROUPS, buffers=BUFFERS, shared=SHARED)
    other = write_zero(tmp_path / "other", model.state_dict(), 2, 2, groups=[group[::-1] for group in GROUPS], buffers=BUFFERS, shared={})
    for path in other.glob("*/*optim_states.pt"):
        (folder / "global_step3" / path.name).write_bytes(path.read_bytes())
    loaded = Net()

    found = refused(Net(), folder)
    rankwise.load_weights(loaded, folder / "global_step3" / "mp_rank_00_model_states.pt")

    assert found.code == "RW732" and "mp_rank_00_model_states.pt" in found.next[0]
    assert all(torch.equal(value, loaded.state_dict()[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("stage", [2, 3])
def test_two_files_of_one_rank_are_not_chosen_between(tmp_path: Path, stage: int) -> None:
    folder, _ = written(tmp_path, stage, 2)
    other, _ = written(tmp_path / "other", stage, 2)
    name = "zero_pp_rank_1_mp_rank_00_optim_states.pt"
    (folder / "global_step3" / f"bf16_{name}").write_bytes((other / "global_step3" / name).read_bytes())

    found = refused(Net(), folder)

    assert found.code == "RW736" and f"bf16_{name} and {name}" in found.summary


def test_a_ranks_file_in_the_place_of_another_ranks_is_noticed(tmp_path: Path) -> None:
    folder, _ = written(tmp_path, 2, 2)
    first, second = sorted((folder / "global_step3").glob("*optim_states.pt"))
    second.write_bytes(first.read_bytes())

    assert refused(Net(), folder).code == "RW732"


@pytest.mark.parametrize("as_tensor", [False, True])
@pytest.mark.parametrize("stage", [2, 3])
def test_files_of_two_steps_are_not_joined(tmp_path: Path, stage: int, as_tensor: bool) -> None:
    """What is left where a save was killed that went over an older one."""
    saved = Net()
    older, newer = (
        write_zero(tmp_path / str(step), saved.state_dict(), stage, 2, groups=GROUPS, buffers=BUFFERS, shared=SHARED, step=count)
        for step, count in ((3, torch.tensor(3.0) if as_tensor else 3), (4, torch.tensor(4.0) if as_tensor else 4))
    )
    rankwise.load_weights(Net(), newer)
    name = "zero_pp_rank_1_mp_rank_00_optim_states.pt"
    (newer / "global_step3" / name).write_bytes((older / "global_step3" / name).read_bytes())

    found = refused(Net(), newer)

    assert found.code == "RW736" and "different steps" in found.summary


def test_a_link_called_latest_does_not_show_what_it_leads_to(tmp_path: Path) -> None:
    folder, _ = written(tmp_path, 2, 2)
    (tmp_path / "key").write_text("-----BEGIN\nsecret\n-----END\n")
    (folder / "latest").unlink()
    (folder / "latest").symlink_to(tmp_path / "key")

    found = refused(Net(), folder)

    assert found.code == "RW732" and "secret" not in str(found)
