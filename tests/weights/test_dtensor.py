"""DTensors that torch.save wrote: one rank's file is a part, all ranks' files are the whole."""

from __future__ import annotations

import math
import shutil
from itertools import product
from pathlib import Path

import pytest
import torch
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset

from rankwise.weights.dtensor import _box, join_ranks
from rankwise.weights.tensor_records import Content, Damaged, Extent, TensorPiece, TensorRecord
from tests.weights.checkpoints import refused
from tests.weights.nets import Net


def test_one_ranks_file_says_what_it_is(corpus: Path) -> None:
    found = refused(Net(), corpus / "dtensor_files" / "rank-1.pt")

    assert found.code == "RW740"
    assert "rank 1's part, [8, 4] of [16, 4]" in found.why and "the files of all ranks" in found.why


def test_files_of_too_few_ranks_are_not_joined(corpus: Path, tmp_path: Path) -> None:
    shutil.copy(corpus / "dtensor_files" / "rank-0.pt", tmp_path / "a.pt")
    shutil.copy(corpus / "dtensor_files" / "rank-0.pt", tmp_path / "b.pt")

    assert refused(Net(), tmp_path).code == "RW732"


def test_files_of_two_different_jobs_are_not_joined(corpus: Path, tmp_path: Path) -> None:
    shutil.copy(corpus / "dtensor_files" / "rank-0.pt", tmp_path / "a.pt")
    torch.save({"other": torch.ones(3)}, tmp_path / "b.pt")

    assert refused(Net(), tmp_path).code == "RW732"


def _of_one_row(rank: int, count: int) -> Content:
    """What each of these ranks has of a bias of one number, which torch gives to the first."""
    path = Path(f"rank-{rank}.pt")
    mine = TensorRecord("float32", (count,), Extent(path, 0, 4 * count), strides=(1,))
    part = TensorRecord("float32", (1,), unreadable="a part", part=TensorPiece((1,), (0,), part=mine))
    return Content("torch zip", {"bias": mine if count else part}, (path,))


def test_a_single_row_is_all_of_one_rank_and_nothing_of_the_others() -> None:
    whole = join_ranks([_of_one_row(0, 1), _of_one_row(1, 0), _of_one_row(2, 0)]).tree["bias"]

    assert not whole.unreadable
    assert [(chunk.sizes, chunk.part.storage.path.name) for chunk in whole.chunks] == [((1,), "rank-0.pt")]


def test_a_single_row_that_no_rank_has_is_missing() -> None:
    with pytest.raises(Damaged, match="0 of 1 elements"):
        join_ranks([_of_one_row(1, 0), _of_one_row(2, 0)])


@pytest.mark.parametrize("shape", [(7, 5), (1, 3), (4,), (2, 3, 5)])
@pytest.mark.parametrize("mesh", [(2,), (3,), (2, 2), (1, 4), (3, 2)])
def test_parts_are_where_torch_puts_them(shape: tuple[int, ...], mesh: tuple[int, ...]) -> None:
    kinds = [Replicate(), *(Shard(dim) for dim in range(len(shape)))]
    for placements in product(kinds, repeat=len(mesh)):
        named = [(type(placement).__name__, getattr(placement, "dim", None)) for placement in placements]
        for coordinate in product(*map(range, mesh)):
            size, offset = _compute_local_shape_and_global_offset(shape, mesh, lambda dim, at=coordinate: at[dim], placements)
            offsets, sizes = _box(shape, named, mesh, coordinate)
            assert sizes == tuple(size)
            if math.prod(sizes):
                assert offsets == tuple(offset)
