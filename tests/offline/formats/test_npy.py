""".npy: one array in, one array out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rankwise.offline.batches import Selection
from rankwise.offline.output import write_output
from rankwise.offline.source import open_source
from rankwise.offline.workspace import PredictError
from tests.offline.results import COUNT, batches


@pytest.mark.parametrize("array", [np.ones((3, 2), ">f4"), np.array([1, 2], ">i8")])
def test_an_array_in_another_order_of_bytes(tmp_path: Path, array: np.ndarray) -> None:
    np.save(tmp_path / "x.npy", array)

    (batch,) = open_source(tmp_path / "x.npy", Selection()).batches(10)

    assert batch.columns["input"].dtype.isnative
    np.testing.assert_array_equal(batch.columns["input"], array)


def test_several_outputs_do_not_go_into_npy(tmp_path: Path) -> None:
    with pytest.raises(PredictError) as caught:
        write_output(tmp_path / "out.npy", lambda: iter(batches()), COUNT)

    assert caught.value.finding.code == "RW834"
