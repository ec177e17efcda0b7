"""Many rows that travel inside the message, each small enough for it, all of them together too large for one packet."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from rankwise.errors import RankwiseError  # noqa: E402
from rankwise.pool import Model, Pool  # noqa: E402


def test_a_batch_of_more_bytes_than_one_packet_holds() -> None:
    with Pool({"rows": Model("tests.pool.models:rows", max_batch=256)}, workers=1) as pool:
        pool.submit("rows", torch.zeros(1, 1024)).result(60)
        futures = [pool.submit("rows", torch.full((1, 1024), float(i))) for i in range(300)]

        assert [future.result(60)["y"][0, 0].item() for future in futures] == [2.0 * i for i in range(300)]
        assert pool.stats()["models"]["rows"]["mean_batch"] > 20  # more than a packet holds
        del futures
        assert pool.stats()["lanes"]["inputs_used_bytes"] == 0


@pytest.mark.live
def test_the_same_with_deadlines_and_with_rows_on_the_lane_between() -> None:
    """These cannot be joined: each travels as a part of its own, and so do their results."""
    with Pool({"rows": Model("tests.pool.models:rows", max_batch=256)}, workers=1) as pool:
        pool.submit("rows", torch.zeros(1, 1024)).result(60)
        futures = [pool.submit("rows", torch.full((1 + 3 * (i % 40 == 7), 1024), float(i)), deadline_s=60) for i in range(300)]

        assert [future.result(60)["y"][0, 0].item() for future in futures] == [2.0 * i for i in range(300)]


def test_many_rows_that_fail_at_once_with_long_tracebacks() -> None:
    with Pool({"rows": Model("tests.pool.models:wordy", max_batch=256)}, workers=1) as pool:
        futures = [pool.submit("rows", torch.full((1, 1024), float(i)), deadline_s=60) for i in range(300)]

        for future in futures:
            with pytest.raises(RankwiseError, match="no row is good enough"):
                future.result(60)
        assert pool.stats()["restarts"] == 0


@pytest.mark.live
def test_a_stream_of_rows_too_large_for_one_packet_together() -> None:
    with Pool({"rows": Model("tests.pool.models:rows", max_batch=64)}, workers=2) as pool:
        results = pool.map("rows", (torch.full((1, 1024), float(i)) for i in range(500)))

        assert [result["y"][0, 0].item() for result in results] == [2.0 * i for i in range(500)]


@pytest.mark.live
def test_a_batch_whose_caller_holds_all_of_the_lane_still_runs() -> None:
    with Pool({"rows": Model("tests.pool.models:rows", max_batch=256)}, workers=1, lane_bytes="1MB") as pool:
        held = pool.empty(240_000, "float32")
        futures = [pool.submit("rows", torch.full((1, 1024), float(i))) for i in range(100)]

        assert [future.result(60)["y"][0, 0].item() for future in futures] == [2.0 * i for i in range(100)]
        assert pool.stats()["models"]["rows"]["mean_batch"] > 5 and len(held) == 240_000
