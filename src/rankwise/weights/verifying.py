"""Reads a whole checkpoint once, to see that its bytes are those that were written."""

from __future__ import annotations

import os

from rankwise.weights.checkpoint import open_checkpoint
from rankwise.weights.state_dicts import find_state_dicts
from rankwise.weights.tensors import TensorReader


def verify_checkpoint(path: str | os.PathLike[str]) -> int:
    """The number of bytes that have a checksum and agree with it; CheckpointError at the first that does not."""
    reader = TensorReader()
    for state in find_state_dicts(open_checkpoint(path)):
        for name, record in state.tensors.items():
            if not record.unreadable:
                reader.check(name, record)
    return reader.verified_bytes
