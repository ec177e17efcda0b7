"""The catalogue of causes: one Markdown page per cause, with a TOML head.

The page `RW201-skipped-collective.md` is the cause RW201 `skipped-collective`; `rankwise explain RW201` shows that file. Its head holds
`severity`, `next` (the steps every finding of that cause suggests) and what `Cause` lists beside them. Causes are found by listing this
folder: a new one needs its page, the function that finds it, and a test that expects it.
"""

from __future__ import annotations

from rankwise.causes._catalogue import Cause, all_causes, is_cause, load_cause

__all__ = ["Cause", "all_causes", "is_cause", "load_cause"]
