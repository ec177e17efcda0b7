"""Pools of these tests start warm."""

from __future__ import annotations

from tests.warm import warm_pools

__all__ = ["warm_pools"]
