"""Arrays: a place for each row, and rows that are alike."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from rankwise.offline.output import write_output
from rankwise.offline.parts import Results
from rankwise.offline.workspace import PredictError
from tests.offline.results import COUNT, FAILED, batches, only_output


def test_arrays_keep_a_place_for_failed_rows(tmp_path: Path) -> None:
    write_output(tmp_path / "out.npy", lambda: iter(only_output(batches())), COUNT)
    write_output(tmp_path / "out.safetensors", lambda: iter(batches()), COUNT)
    array, tensors = np.load(tmp_path / "out.npy"), load_file(tmp_path / "out.safetensors")

    assert array.shape == (COUNT, 2)
    assert np.isnan(array[sorted(FAILED)]).all() and array[998, 0] == 998
    np.testing.assert_array_equal(array, tensors["output"])
    assert tensors["label"][17] == 0 and tensors["label"][18] == 3


@pytest.mark.parametrize("suffix", [".npy", ".safetensors"])
def test_outputs_that_change_are_a_finding_and_no_file(tmp_path: Path, suffix: str) -> None:
    widths = (2, 4)
    parts = [Results([i], {"output": np.zeros((1, width), np.float32)}, [], i, 1) for i, width in enumerate(widths)]

    with pytest.raises(PredictError) as caught:
        write_output(tmp_path / f"out{suffix}", lambda: iter(parts), 2)

    assert caught.value.finding.code == "RW834"
    assert "row 1 is float32[4]" in caught.value.finding.summary
    assert not list(tmp_path.iterdir())
