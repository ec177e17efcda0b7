"""Each backward's loss on this rank: its value where it can be read at once, its divisor, and when it became NaN or infinite."""

import math
from typing import Any

from .. import sites
from . import record

_last: float | None = None
_sum, _count = 0.0, 0
_divisor: float | None = None
_root = ""
_mean_reduced = False
_first_bad: list[Any] = []


def take(tensors: Any, n: int, frame: Any) -> None:
    """Take the loss before a backward that starts from `tensors`."""
    global _last, _sum, _count
    root = tensors[0] if isinstance(tensors, (tuple, list)) and len(tensors) == 1 else tensors
    if not hasattr(root, "numel") or root.numel() != 1:
        return
    _read_chain(root.grad_fn)
    if root.device.type != "cpu" and not (record.may_read(root) and record.is_sampled(n)):
        return
    _last = float(root.item())
    if not math.isfinite(_last):
        if not _first_bad:
            _first_bad.append(n)
            record.write("bad_loss", n=n, site=sites.number_of_caller(frame), value=str(_last))
        return
    _sum, _count = _sum + _last, _count + 1


def _read_chain(node: Any) -> None:
    """Up to three steps back from the root: a division by a number, a product with one, the kind of loss."""
    global _divisor, _root, _mean_reduced
    _divisor, _root = None, ""
    for _ in range(3):
        if node is None:
            return
        name = node.name() if hasattr(node, "name") else ""
        if name in ("DivBackward0", "MulBackward0"):
            factor = _factor_of(node)
            if factor:
                factor = factor if name == "DivBackward0" else 1 / factor
                _divisor = (_divisor or 1.0) * factor
        else:
            _root = name
            _mean_reduced = name.startswith("MeanBackward") or getattr(node, "_saved_reduction", 0) == 1
            return
        node = next((after for after, _ in node.next_functions if after is not None), None)


def _factor_of(node: Any) -> float | None:
    """The number a loss is divided by or multiplied with, where it is a plain one and on the CPU."""
    try:
        other = node._saved_other
    except (AttributeError, RuntimeError):
        return None
    if other is None or other.device.type != "cpu" or other.numel() != 1 or other.requires_grad:
        return None
    return float(other) or None


def facts() -> dict[str, Any]:
    return {"divisor": _divisor, "root": _root, "is_mean": _mean_reduced}


def last() -> float | None:
    return _last if _last is not None and math.isfinite(_last) else None


def mean() -> tuple[float, int]:
    return (_sum / _count if _count else 0.0), _count
