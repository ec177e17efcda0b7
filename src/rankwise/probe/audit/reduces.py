"""Labels the tensors this rank gives to collectives: a parameter's gradient, the metric's name in the loop around, a number."""

import sys
import weakref
from typing import Any

from .. import sites
from . import fingerprints, models, record

_OPS = ("all_reduce", "reduce", "broadcast", "all_gather", "all_gather_into_tensor", "gather")
_FIRST = 400
_FRAMES = 3
_MAX_LABEL = 60
_FEW = 4
_SPOILED = frozenset({"locals", "vars", "eval", "exec", "dir"})  # before Python 3.13, reading f_locals changes what locals() returned
_OPTIMIZED = 0x01

_counts: dict[tuple[str, str], int] = {}
_labels: dict[int, tuple[str, weakref.ref[Any]]] = {}  # address of a tensor: its label, and the parameter it belongs to
_misses = 0  # tensors in a row that were none of the model's
optimized: list[Any] = []  # parameters of optimizers where no model is wrapped


@record.budgeted
def note(op: str, group: str, tensor: Any, site_frame: Any) -> None:
    """One collective of the user's is about to be made."""
    if op not in _OPS or not hasattr(tensor, "dtype"):
        return
    n = _counts[op, group] = _counts.get((op, group), -1) + 1
    if n >= _FIRST and not record.is_sampled(n):
        return
    label = _parameter_label(tensor)
    words = () if label else _words_around(site_frame)
    record.write(
        "reduced",
        op=op,
        group=group,
        n=n,
        label=label,
        words=list(words),
        values=_values(tensor),
        numel=tensor.numel(),
        site=sites.number_of_caller(site_frame),
    )


def _parameter_label(tensor: Any) -> str:
    """The parameter a tensor belongs to, by the addresses known from the last search. Gradients move, so an unknown address starts another
    search; searches that find nothing come less and less often."""
    global _misses
    pointer = tensor.data_ptr() if fingerprints.is_plain(tensor) else 0
    if not pointer:
        return ""
    label = _label_at(pointer, tensor.numel())
    if not label and record.is_sampled(_misses):
        _labels.clear()
        for name, p in _parameters():
            for what, t in (("parameter", p), ("gradient of", p.grad)):
                if t is not None and fingerprints.is_plain(t) and t.numel():
                    _labels[t.data_ptr()] = (f"{what} {name}", weakref.ref(p))
        label = _label_at(pointer, tensor.numel())
    _misses = 0 if label else _misses + 1
    return label


def _label_at(pointer: int, numel: int) -> str:
    label, ref = _labels.get(pointer, ("", None))
    p = ref() if ref is not None else None
    t = None if p is None else p.grad if label.startswith("gradient") else p
    return label if t is not None and t.data_ptr() == pointer and t.numel() == numel else ""


def _parameters() -> list[tuple[str, Any]]:
    if models.known:
        return [pair for one in models.known for pair in one.named()][:1000]
    return [(f"parameter {i}", p) for i, ref in enumerate(optimized[:1000]) if (p := ref()) is not None]


def _words_around(frame: Any) -> list[str]:
    """Short texts in the variables of the user's functions around the call: in a loop over metrics, the metric's name."""
    found: list[str] = []
    for _ in range(_FRAMES):
        while frame is not None and not sites.is_users(frame):
            frame = frame.f_back
        if frame is None or not frame.f_code.co_flags & _OPTIMIZED:  # a module's own variables belong to no loop
            break
        found += _texts_of(frame)
        frame = frame.f_back
    return found[:6]


def _texts_of(frame: Any) -> list[str]:
    code = frame.f_code
    if sys.version_info < (3, 13) and not _SPOILED.isdisjoint(code.co_names):
        return []
    values = frame.f_locals
    found = [f"{name}={value[:_MAX_LABEL]}" for name, value in values.items() if type(value) is str and value]
    if sys.version_info < (3, 13):
        values.clear()  # Python keeps this copy with the frame, and it would keep the user's tensors alive
    return found


def _values(tensor: Any) -> list[float]:
    """The numbers of a metric; empty on a GPU, where reading would wait."""
    if tensor.numel() > _FEW or tensor.device.type != "cpu" or not fingerprints.is_plain(tensor) or tensor.is_complex():
        return []
    return [float(value) for value in tensor.detach().reshape(-1).tolist()]
