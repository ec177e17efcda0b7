""".npy: one array in, one array out."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from rankwise.errors import UnreadableInput
from rankwise.offline.output import write_output
from rankwise.offline.row_batches import Selection
from rankwise.offline.source import batches_of, open_source
from rankwise.offline.workspace import PredictError
from tests.offline.results import COUNT, batches


@pytest.mark.parametrize("array", [np.ones((3, 2), ">f4"), np.array([1, 2], ">i8")])
def test_an_array_in_another_order_of_bytes(tmp_path: Path, array: np.ndarray) -> None:
    np.save(tmp_path / "x.npy", array)

    (batch,) = open_source(tmp_path / "x.npy", Selection()).batches(10)

    assert batch.columns["input"].dtype.isnative
    np.testing.assert_array_equal(batch.columns["input"], array)


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_file_that_is_cut_short_while_it_is_read(tmp_path: Path, order: str) -> None:
    """A mapped file would end the process here."""
    np.save(tmp_path / "x.npy", np.ones((100_000, 4), order=order))
    rows = batches_of(open_source(tmp_path / "x.npy", Selection()), 1000)
    assert next(rows).length == 1000

    os.truncate(tmp_path / "x.npy", 50_000)

    with pytest.raises(UnreadableInput, match="cannot be read from row 1,000 on"):
        list(rows)


@pytest.mark.parametrize(
    "array", [np.arange(24).reshape(4, 3, 2, order="F"), np.zeros((0, 3)), np.zeros((3, 0)), np.array(["a", "bcd"]), np.ones((2, 2), bool)]
)
def test_arrays_of_every_kind(tmp_path: Path, array: np.ndarray) -> None:
    np.save(tmp_path / "x.npy", array)

    read = [batch.columns["input"] for batch in open_source(tmp_path / "x.npy", Selection()).batches(2)]

    assert [row for batch in read for row in np.asarray(batch).tolist()] == array.tolist()


def test_several_outputs_do_not_go_into_npy(tmp_path: Path) -> None:
    with pytest.raises(PredictError) as caught:
        write_output(tmp_path / "out.npy", lambda: iter(batches()), COUNT)

    assert caught.value.finding.code == "RW834"
