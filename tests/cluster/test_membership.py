"""What the engine says where Ray is missing, or a cluster cannot be joined; needs no cluster."""

from __future__ import annotations

import sys
import time
from typing import Any

import pytest

from rankwise import Model, Pool
from rankwise.errors import UsageError
from rankwise.pool.errors import PoolError


def test_without_ray_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"rankwise\[ray\]"):
        Pool({"m": Model("torch.nn:Identity")}, engine="ray")


def test_where_nobody_listens_it_is_said_at_once(free_port: int) -> None:
    pytest.importorskip("ray")
    started = time.monotonic()
    with pytest.raises(PoolError, match=rf"the Ray cluster at 127.0.0.1:{free_port} could not be joined\n.*Connection refused") as told:
        Pool({"m": Model("torch.nn:Identity")}, engine="ray", address=f"127.0.0.1:{free_port}")
    assert time.monotonic() - started < 30  # Ray itself takes minutes
    assert "import torch" not in str(told.value)


def test_why_a_cluster_lets_nobody_in_is_told_to_the_first_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Ray 2.60 raises it where the token is missing; that there is no cluster would be wrong."""
    ray = pytest.importorskip("ray")

    def refuse(**_: Any) -> None:
        try:
            raise RuntimeError("Last connection error: Traceback (most recent call last):\n  x\nInvalidAuthToken: no")
        except RuntimeError as error:
            raise ConnectionError("Failed to connect to Ray cluster at 10.0.0.1:6379") from error

    monkeypatch.setattr(ray, "init", refuse)
    with pytest.raises(PoolError, match=r"Failed to connect to Ray cluster at 10.0.0.1:6379\n *InvalidAuthToken: no\n"):
        Pool({"m": Model("torch.nn:Identity")}, engine="ray")
