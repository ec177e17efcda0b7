"""Many rows that travel inside the message, each small enough for it, all of them together too large for one packet."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from rankwise.pool import Model, Pool  # noqa: E402


@pytest.mark.xfail(reason="a batch of more bytes than one packet holds is never sent, and its tasks wait for ever", raises=TimeoutError)
def test_a_batch_of_more_bytes_than_one_packet_holds() -> None:
    with Pool({"rows": Model("tests.pool.models:rows", max_batch=256)}, workers=1) as pool:
        pool.submit("rows", torch.zeros(1, 1024)).result(60)
        futures = [pool.submit("rows", torch.full((1, 1024), float(i))) for i in range(300)]

        assert [future.result(10)["y"][0, 0].item() for future in futures] == [2.0 * i for i in range(300)]
