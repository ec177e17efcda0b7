"""Tasks through a message broker: `rankwise worker` runs them in a pool, `rankwise.remote` submits them.

Begin with `messages` (what travels), then `worker` (how a message becomes one answer) and `client`.
"""

from __future__ import annotations

from rankwise.broker.client import Remote, remote

__all__ = ["Remote", "remote"]
