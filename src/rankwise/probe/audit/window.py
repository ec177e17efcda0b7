"""The window between two optimizer steps as a short text: one letter for each thing that matters for the gradients.

s n -   a backward after a synchronising DDP forward, after one in no_sync, after none through the wrapper
z       gradients thrown away that no step had used
g       the loss was multiplied by a GradScaler     u  unscaled     C c  clipped, c while still multiplied
m       gradients changed by hand after the last backward
|       the data ended while gradients waited for a step     G  at the end: the step was a GradScaler's
"""

import weakref
from typing import Any

from .. import sites
from . import record

_LONGEST = 120

_letters: list[str] = []
_lines: set[int] = set()  # places at which this window's backwards were made: one in a loop, several with several losses
_forwards = ""  # the letter for DDP's forwards with gradients since the last backward: s or n
_pending = 0  # backwards since gradients were last used or thrown away
_versions: int | None = None  # of some parameters, at the last backward
_grads: list[tuple[int, int]] = []  # of the same parameters: their gradients' state then
_watched: list[weakref.ref[Any]] = []
is_scaled = False
backwards = 0  # in all
syncs = 0  # backwards that DDP reduced
where: dict[str, int] = {}  # letter: the place it was last noted at


def note(letter: str, frame: Any = None) -> None:
    if len(_letters) < _LONGEST:
        _letters.append(letter)
    if frame is not None:
        where[letter] = sites.number_of_caller(frame)


def forward(mode: str | None) -> None:
    """A forward through DDP began; `mode` says how it differs from one of plain training: no_sync, no_grad, eval."""
    global _forwards
    if mode is None:
        _forwards = "s"
    elif "no_grad" not in mode and ("eval" not in mode or not _forwards):
        _forwards = "n" if "no_sync" in mode else "s"


def backward_begins(frame: Any) -> None:
    """A backward begins. Gradients of the last one that are gone now were thrown away by hand (`p.grad = None`)."""
    if _pending and _grads and not _state_of_grads():
        zeroed(frame)


def backward(frame: Any) -> None:
    """A backward has ended."""
    global _versions
    letter = _next_letter()
    _versions, _grads[:] = _version_of_weights(), _state_of_grads()
    note(letter, frame)
    _lines.add(where[letter])


def count_backward() -> None:
    """A backward has ended in a step that is not observed."""
    note(_next_letter())


def _next_letter() -> str:
    """Count a backward, and return its letter."""
    global _forwards, _pending, backwards, syncs
    backwards += 1
    _pending += 1
    letter = _forwards or "-"
    syncs += letter == "s"
    _forwards = ""
    return letter


def zeroed(frame: Any) -> None:
    """Gradients are about to be thrown away; that matters where nothing has used them."""
    global _pending
    if _pending and _versions == _version_of_weights():
        note("z", frame)
    _pending = 0


def data_ended() -> None:
    if _pending:
        note("|")
        record.observe_step()


def close() -> tuple[str, int]:
    """A step is made: the letters since the one before, and from how many places backwards were made."""
    global _pending
    if _grads and not {"C", "c", "u"} & set(_letters) and _grads != _state_of_grads():
        note("m")
    closed = "".join(_letters), len(_lines)
    _letters.clear()
    _lines.clear()
    _grads.clear()
    _pending = 0
    return closed


def pending() -> str:
    return "".join(_letters)


def watch(parameters: list[Any]) -> None:
    """Watch some parameters: a change of them shows that gradients were used, with or without an optimizer."""
    picked = [parameters[0], parameters[-1]] if parameters else []
    _watched.extend(weakref.ref(p) for p in picked if len(_watched) < 8)


def _state_of_grads() -> list[tuple[int, int]]:
    """Which tensors hold the gradients of some parameters, and how often each was written to."""
    grads = [p.grad for ref in _watched if (p := ref()) is not None]
    return [(id(grad), grad._version) for grad in grads if grad is not None and not grad.is_inference()]


def _version_of_weights() -> int:
    return sum(p._version for ref in _watched if (p := ref()) is not None and not p.is_inference())
