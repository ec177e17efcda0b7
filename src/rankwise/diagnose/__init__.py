"""Evidence in, findings out: pure functions, no processes, no clock, no I/O.

Begin with `decide`, which calls the families of causes (`start`, `disagree`, `stuck`, `crash`, `silent/`, `notes`) and puts the root cause
first. `rank_state` says what each rank is doing, `match` compares their collectives slot by slot, the room `source` reads the user's code.
"""

from __future__ import annotations

from rankwise.diagnose.decide import diagnose

__all__ = ["diagnose"]
