"""The catalogue of causes: one file per cause, whose doc block is its page.

A file `rw201_skipped_collective.py` is the cause RW201 `skipped-collective`. It holds its page as its docstring (Markdown, the first line
is its title), `SEVERITY`, and `NEXT`, the steps every finding of that cause suggests. Causes are found by listing this folder.
"""

from __future__ import annotations

from rankwise.causes._catalogue import Cause, all_causes, is_cause, load_cause

__all__ = ["Cause", "all_causes", "is_cause", "load_cause"]
