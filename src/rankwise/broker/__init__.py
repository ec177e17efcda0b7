"""Tasks through a message broker: `rankwise worker` runs them in a pool, `rankwise.remote` submits them.

Begin with `messages` (requests and replies), then `consumer` (how a message becomes one answer) and `client`. `stores` keeps the answers,
`connecting` speaks to the broker through kombu, `redis_transport` is our transport for Redis.
"""

from __future__ import annotations

from rankwise.broker.client import Remote, remote

__all__ = ["Remote", "remote"]
