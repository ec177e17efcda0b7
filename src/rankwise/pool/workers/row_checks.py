"""Whether the rows of a model's batches are independent of each other, found out by running some of them in other ways.

A single look cannot tell: an output as long as the batch may be a constant of that length, and rows that differ from what each gives alone
look like any others. So rows run alone, among copies of themselves, and among fewer others in another order: closely for the first batches
of a model and whenever one is much larger than those before, and now and then for as long as it runs."""

from __future__ import annotations

import random
import time
import weakref
from dataclasses import dataclass, field
from typing import Any

import torch

from rankwise.pool.memory.encoding import PLAIN, Uneven, bits_of, joined, leaves
from rankwise.pool.workers.loading import Loaded, watched_random
from rankwise.pool.workers.runner import Call, Unbatchable, check_poison, cut, each_tensor, is_out_of_memory, own

# How far two ways to compute the same may be apart, as a part of the largest number of a row.
_ROUNDING = {torch.float64: 1e-6, torch.complex128: 1e-6, torch.float32: 1e-3, torch.complex64: 1e-3, torch.float16: 1e-2}
_COARSE = 5e-2  # for bfloat16 and what is coarser still


def take(value: Any, places: list[int]) -> Any:
    """These rows of all tensors, as a copy."""
    return each_tensor(value, lambda tensor: tensor[places])


def rows_vary(value: Any) -> bool:
    """Whether any row differs from the first one."""
    return any(not torch.equal(tensor, tensor[:1].expand_as(tensor)) for tensor in _tensors(value))


def outline_of(value: Any) -> Any:
    """Types and shapes of one row, with the plain values beside it; None where there is something else, which may mean anything."""
    found = leaves(value)
    if not all(isinstance(leaf, torch.Tensor) or type(leaf) in PLAIN for leaf in found):
        return None
    return tuple([(leaf.dtype, leaf.shape[1:]) if isinstance(leaf, torch.Tensor) else bits_of(leaf) for leaf in found])


def roundings(value: Any) -> list[float]:
    """For each of its tensors: how far two ways to compute it may be apart, as a part of its largest number."""
    return [_ROUNDING.get(tensor.dtype, _COARSE) if _is_rounded(tensor) else 0.0 for tensor in _tensors(value)]


def largest(value: Any) -> list[float]:
    """The largest number of each of its tensors, those that are not finite left out."""
    return [_largest(tensor) if _is_rounded(tensor) else 0.0 for tensor in _tensors(value)]


def gaps(a: Any, b: Any) -> list[float]:
    """How far each two tensors of two outputs are apart; infinite where they are of another shape or type, or differ in what is not
    floating point."""
    return [_gap(one, two) for one, two in zip(_tensors(a), _tensors(b), strict=True)]


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in leaves(value) if isinstance(leaf, torch.Tensor)]


def _is_rounded(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _largest(tensor: torch.Tensor) -> float:
    finite = tensor[tensor.isfinite()].abs()
    return float(finite.max()) if finite.numel() else 0.0


def _gap(a: torch.Tensor, b: torch.Tensor) -> float:
    if a.shape != b.shape or a.dtype != b.dtype:
        return float("inf")
    if not _is_rounded(a):
        return 0.0 if torch.equal(a, b) else float("inf")
    wide = torch.complex128 if a.is_complex() else torch.float64
    a, b = a.to(wide), b.to(wide)
    finite = a.isfinite()
    if not torch.equal(finite, b.isfinite()) or not torch.equal(a[~finite].nan_to_num(), b[~finite].nan_to_num()):
        return float("inf")
    return _largest(a[finite] - b[finite])


_CLOSE_LOOKS = 3  # batches of a model that are looked at closely, of those whose rows are not all the same
_SHARE = 64  # after that, looks take this part of the time that the model runs
_MOST_KEYS = 256  # kinds of inputs whose outputs' shapes are remembered
_NOISE = 4.0  # rounding may be so many times what was seen of it
_MOST_NOISE = 10.0  # times what is usual for the type; a model that is coarser inside than its output (bfloat16) shows that much
_COARSEST = 0.2  # more than this part of the largest number is no rounding, whatever the type
_SMALL = 0.01  # a row with smaller numbers than this part of the batch's is taken for one with such


@dataclass
class Known:
    """What was seen of one model in this worker."""

    model: weakref.ref[Loaded]
    reason: str = ""  # why its rows are not to be batched
    looks_left: int = _CLOSE_LOOKS
    same_left: int = 1  # looks at batches whose rows are all the same, which tell less
    most_rows: int = 1  # in a batch that was looked at closely
    is_unsteady: bool = False  # it answers the same input differently: nothing can be compared
    is_doubted: bool = False  # one row differed, which rounding can do where an answer hangs by a hair
    ran_ns: int = 0
    looked_ns: int = 0
    outlines: dict[Any, Any] = field(default_factory=dict)  # of outputs, by what the inputs look like


class RowChecker:
    """`spare` before a batch runs, `check` after it; raises Unbatchable, with the reason."""

    def __init__(self) -> None:
        self._known: dict[int, Known] = {}
        self._random = random.Random()  # its own: the model's numbers are not touched

    def spare(self, model: Loaded, inputs: tuple[Any, ...], rows: int) -> tuple[Any, ...] | None:
        """A copy of the inputs where this batch is to be looked at, because the model may write to them; None where it is not."""
        if not model.is_checked or rows < 2:
            return None
        known = self._of(model)
        if known.is_unsteady or known.reason or not (self._is_close(known, inputs, rows) or known.looked_ns * _SHARE < known.ran_ns):
            return None
        return own(inputs)  # type: ignore[no-any-return]

    def check(self, model: Loaded, call: Call, inputs: tuple[Any, ...], spare: tuple[Any, ...] | None, output: Any, took_ns: int) -> Any:
        """The output that may be cut: this one, or what the rows gave one by one, where there is a doubt about it."""
        if not model.is_checked:
            return output
        known = self._of(model)
        known.ran_ns += took_ns
        try:
            if known.reason:
                raise Unbatchable(known.reason)
            self._check_outline(known, inputs, output)
            return output if spare is None else self._looked(known, call, spare, output)
        except Unbatchable as error:
            known.reason = str(error)
            raise

    def _looked(self, known: Known, call: Call, spare: tuple[Any, ...], output: Any) -> Any:
        started = time.monotonic_ns()
        look = Look(known, call, spare, output, self._random)
        checked = look.closely() if self._is_close(known, spare, look.rows) else look.quickly()
        if not look.was_close:
            known.looked_ns += time.monotonic_ns() - started
        return checked

    def _of(self, model: Loaded) -> Known:
        known = self._known.get(id(model))
        if known is None or known.model() is not model:
            known = self._known[id(model)] = Known(weakref.ref(model))
        return known

    def _is_close(self, known: Known, inputs: tuple[Any, ...], rows: int) -> bool:
        if rows >= 2 * known.most_rows:
            return True
        return (known.looks_left > 0 and rows_vary(inputs)) or known.same_left > 0

    def _check_outline(self, known: Known, inputs: tuple[Any, ...], output: Any) -> None:
        """Inputs of the same kind give rows of the same shape, or the shape depends on what else is in the batch."""
        key = outline_of(inputs)
        if key is None or known.is_unsteady:
            return
        outline = outline_of(output)
        before = known.outlines.setdefault(key, outline)
        if before != outline:
            raise Unbatchable("rows of inputs of the same shape have another shape in another batch")
        if len(known.outlines) > _MOST_KEYS:
            known.outlines.clear()


class Look:
    """One batch, run in other ways."""

    def __init__(self, known: Known, call: Call, inputs: tuple[Any, ...], output: Any, source: random.Random) -> None:
        self._known, self._call, self._inputs, self._output, self._random = known, call, inputs, output, source
        self.rows = _rows_of(output)
        self.was_close = False
        self._scale = largest(output)
        self._roundings = roundings(output)
        self._noise = [0.0] * len(self._scale)  # of each tensor
        self._different: set[int] = set()
        self._furthest = 0.0
        self._alone: dict[int, Any] = {}

    def quickly(self) -> Any:
        """One row alone; where it differs, all of the rest."""
        self._run_alone(self._random.randrange(self.rows))
        return self.closely() if self._different else self._output

    def closely(self) -> Any:
        known, self.was_close = self._known, True
        self._different.clear()
        if self._is_unsteady():
            known.is_unsteady = True
            return self._output
        self._measure_noise()
        for row in {0, self.rows - 1, self._random.randrange(self.rows)}:
            self._run_alone(row)
        if self.rows > 3:
            middle = self.rows // 2
            self._run_some([*range(middle - 1, -1, -1)])
            self._run_some([*range(self.rows - 1, middle - 1, -1)])
        return self._judged()

    def _judged(self) -> Any:
        """Several rows that differ are no chance. A single one may be rounding where an answer hangs by a hair, as that of an argmax does:
        nobody gets it, and if it happens again soon, it is no chance either."""
        known = self._known
        if len(self._different) > 1 or (self._different and known.is_doubted):
            raise Unbatchable(self._reason())
        if self._different:
            known.is_doubted, known.looks_left = True, _CLOSE_LOOKS
            return self._one_by_one()
        if rows_vary(self._inputs):
            known.looks_left -= 1
            known.is_doubted = known.is_doubted and known.looks_left > 0
        known.same_left = 0
        known.most_rows = max(known.most_rows, self.rows)
        return self._output

    def _reason(self) -> str:
        if self._furthest == float("inf"):
            return "a row gives something else alone, or among other rows, than it gave in the batch"
        return f"a row alone, or among other rows, differs from what it gave in the batch by {self._furthest:.2g} of its largest number"

    def _is_unsteady(self) -> bool:
        """Whether it draws random numbers, or gives the same row something else the second time."""
        with watched_random() as use:
            self._alone[0] = self._row(0)
        return use.was_drawn or not self._is_rounding(self._row(0))

    def _measure_noise(self) -> None:
        """Rounding depends on how many rows there are: what a row gives among copies of itself differs from itself by that alone."""
        copies = self._tried([0] * self.rows)
        for place in (0, self.rows - 1):
            if not self._is_rounding(take(copies, [place])):
                raise Unbatchable("a row among copies of itself does not give what it gives alone")

    def _is_rounding(self, again: Any) -> bool:
        """What differs from the first row although it should not is how exact this model is, unless it is too much for that."""
        found = gaps(self._alone[0], again)
        self._noise = [max(pair) for pair in zip(self._noise, found)]
        sizes = self._sizes(self._alone[0], again)
        return all(gap <= min(_COARSEST, _MOST_NOISE * rounding) * size for gap, size, rounding in zip(found, sizes, self._roundings))

    def _sizes(self, a: Any, b: Any) -> list[float]:
        """What a difference is measured by, for each tensor: the largest number of the row, or of what is usual in this batch."""
        return [max(one, two, _SMALL * scale) for one, two, scale in zip(largest(a), largest(b), self._scale)]

    def _run_alone(self, row: int) -> None:
        if row not in self._alone:
            self._alone[row] = self._row(row)
        self._compare(row, self._alone[row])

    def _run_some(self, places: list[int]) -> None:
        output = self._tried(places)
        for i, row in enumerate(places):
            self._compare(row, take(output, [i]))

    def _compare(self, row: int, found: Any) -> None:
        among = take(self._output, [row])
        sizes = self._sizes(found, among)
        for gap, size, rounding, noise in zip(gaps(found, among), sizes, self._roundings, self._noise):
            if gap > max(_NOISE * noise, rounding * size):
                self._different.add(row)
                self._furthest = max(self._furthest, gap / size if size else float("inf"))

    def _row(self, row: int) -> Any:
        """What it gives alone, which is one row, with the same beside it as in the batch."""
        output = self._tried([row])
        cut(output, [1])
        try:
            joined([output, self._output], _is_tensor, lambda tensors: tensors[0])
        except Uneven:
            raise Unbatchable("the type of its rows, or what it returns beside them, depends on the batch") from None
        return own(output)

    def _tried(self, places: list[int]) -> Any:
        """The model on these rows. It raised nothing for the batch, so once more where it does: that may have been a passing fault."""
        for is_last in (False, True):
            try:
                return self._call(own(self._inputs, places))
            except Exception as error:
                check_poison(error)
                if is_out_of_memory(error):
                    raise
                if is_last:
                    what = "a single row" if len(places) == 1 else "some of the rows"
                    raise Unbatchable(f"it raises {type(error).__name__} for {what} of a batch that it takes") from error
        return None

    def _one_by_one(self) -> Any:
        outputs = [self._alone[row] if row in self._alone else self._row(row) for row in range(self.rows)]
        try:
            return joined(outputs, _is_tensor, torch.cat)
        except (Uneven, RuntimeError):
            raise Unbatchable("what rows give one by one does not make one output") from None


def _is_tensor(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor)


def _rows_of(output: Any) -> int:
    """Of all its tensors, which have as many."""
    return int(next(leaf.shape[0] for leaf in leaves(output) if _is_tensor(leaf)))
