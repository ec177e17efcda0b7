"""Evidence in, findings out: pure functions, no processes, no clock, no I/O.

`rank_state` says what each rank is doing, `match` compares their collectives slot by slot, the room `source` reads the
user's code; `start`, `disagree`, `stuck` and `crash` each know one family of causes, and `decide` puts the root cause first.
"""

from __future__ import annotations

from rankwise.diagnose.decide import diagnose

__all__ = ["diagnose"]
