"""What the engine refuses; needs no cluster."""

from __future__ import annotations

from typing import Any

import pytest

from rankwise import Model, Pool
from rankwise.errors import UsageError


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"workers": 0}, "runs models in this process"),
        ({"pin": True}, "pin=True does nothing"),
        ({"address": "ray://host:10001"}, "Ray Client"),
        ({"address": 7}, "address is 7"),
        ({"engine": "processes", "address": "host:6379"}, "the engine 'processes' has none"),
    ],
)
def test_what_would_be_silently_different_is_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        Pool({"m": Model("torch.nn:Identity")}, **{"engine": "ray", **options})


def test_one_gpu_by_number_is_refused() -> None:
    with pytest.raises(UsageError, match="Ray's to say"):
        Pool({"m": Model("torch.nn:Identity", device="cuda:1")}, engine="ray")
