"""Boxes of a tensor that was saved in parts: whether they fill it."""

from __future__ import annotations

import math

from rankwise.weights.records import Damaged

Box = tuple[tuple[int, ...], tuple[int, ...]]  # offsets and sizes
_MAX_BOXES = 100_000


def check_cover(name: str, shape: tuple[int, ...], boxes: list[Box]) -> None:
    """Damaged unless the boxes fill the tensor exactly: an element that nobody wrote would be random."""
    inside = all(
        len(offsets) == len(sizes) == len(shape) and all(o + s <= n for o, s, n in zip(offsets, sizes, shape)) for offsets, sizes in boxes
    )
    boxes = [box for box in boxes if math.prod(box[1])]
    filled = sum(math.prod(sizes) for _, sizes in boxes)
    if not inside or filled != math.prod(shape) or len(boxes) > _MAX_BOXES or _overlap(sorted(boxes)):
        raise Damaged(f"the parts of {name[:100]} do not fill its shape {list(shape)}: {filled:,} of {math.prod(shape):,} elements")


def _overlap(boxes: list[Box]) -> bool:
    """Boxes in order of their offsets: one is compared with those that start before it ends in the first dimension."""
    for i, (offsets, sizes) in enumerate(boxes):
        for others, other_sizes in boxes[i + 1 :]:
            if others and others[0] >= offsets[0] + sizes[0]:
                break
            if all(o < p + q and p < o + s for o, s, p, q in zip(offsets, sizes, others, other_sizes)):
                return True
    return False
