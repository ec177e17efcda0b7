"""Predict on a real GPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("pyarrow")

import rankwise  # noqa: E402
from tests.gpu.test_nccl import has_gpu  # noqa: E402

pytestmark = [pytest.mark.skipif(not has_gpu(), reason="no NVIDIA GPU here"), pytest.mark.timeout(300)]
BUILD = "tests.gpu.pool_models:vocabulary"
BAD = [77, 400]


def test_ids_that_the_vocabulary_does_not_have_cost_their_rows(tmp_path: Path) -> None:
    ids = np.random.default_rng(0).integers(0, 100, (500, 8))
    ids[BAD, 3] = 100
    np.save(tmp_path / "ids.npy", ids)

    done = rankwise.predict(BUILD, tmp_path / "ids.npy", tmp_path / "out.npy", workers=2, batch=32, device="cuda")

    out = np.load(tmp_path / "out.npy")
    from tests.gpu.pool_models import vocabulary

    good = np.delete(np.arange(500), BAD)
    with torch.inference_mode():
        expected = vocabulary().eval()(torch.from_numpy(ids[good])).numpy()
    assert done.failed == len(BAD) and np.isnan(out[BAD]).all()
    np.testing.assert_allclose(out[good], expected, rtol=1e-4, atol=1e-4)
