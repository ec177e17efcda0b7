"""Checks whether the rows of a model's batches are independent of each other, by running some of them in other ways.

One run cannot tell: an output as long as the batch may be a constant of that length, and a row that depends on its neighbours looks
like any other. So rows are run again: alone, among copies of themselves, and among fewer rows in another order. The first batches of a
model are checked thoroughly, and so is a batch that is much larger than those before; after that, one row now and then."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from typing import Any

import torch

from rankwise.pool.memory.encoding import PLAIN, Uneven, exact_bytes, joined, leaves
from rankwise.pool.workers.model_building import BuiltModel, random_states, seeded
from rankwise.pool.workers.runner import Call, Unbatchable, check_gpu_usable, cut, is_out_of_memory, own

# How far two computations of the same row may be apart, relative to its largest number.
_TOLERANCES = {torch.float64: 1e-6, torch.complex128: 1e-6, torch.float32: 1e-3, torch.complex64: 1e-3, torch.float16: 1e-2}
_COARSE_TOLERANCE = 5e-2  # for bfloat16 and coarser types


def rows_vary(value: Any) -> bool:
    tensors = [_comparable(tensor) for tensor in _tensors(value)]
    return any(not torch.equal(tensor, tensor[:1].expand_as(tensor)) for tensor in tensors)


def outline_of(value: Any) -> Any:
    """Types and shapes of one row, and the plain values beside it; None if the value holds anything else."""
    found = leaves(value)
    if not all(isinstance(leaf, torch.Tensor) or type(leaf) in PLAIN for leaf in found):
        return None
    return tuple([(leaf.dtype, leaf.shape[1:]) if isinstance(leaf, torch.Tensor) else exact_bytes(leaf) for leaf in found])


def tolerances(value: Any) -> list[float]:
    """How far two computations of each tensor may be apart, relative to its largest number."""
    return [_TOLERANCES.get(tensor.dtype, _COARSE_TOLERANCE) if _is_inexact(tensor) else 0.0 for tensor in _tensors(value)]


def largest(value: Any) -> list[float]:
    return [_largest(_comparable(tensor)) if _is_inexact(tensor) else 0.0 for tensor in _tensors(value)]


def differences(a: Any, b: Any) -> list[float]:
    """How far the tensors of two outputs are apart, pair by pair; infinite for another shape or type, and for integers that differ."""
    return [_difference(one, two) for one, two in zip(_tensors(a), _tensors(b), strict=True)]


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in leaves(value) if _is_tensor(leaf)]


def _is_inexact(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _comparable(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers in a type that torch can compare: it only stores float8 and complex32."""
    if tensor.is_floating_point() and tensor.itemsize == 1:
        return tensor.float()
    return tensor.to(torch.complex64) if tensor.dtype is torch.complex32 else tensor


def _largest(tensor: torch.Tensor) -> float:
    finite = tensor[tensor.isfinite()].abs()
    return float(finite.max()) if finite.numel() else 0.0


def _difference(a: torch.Tensor, b: torch.Tensor) -> float:
    if a.shape != b.shape or a.dtype != b.dtype:
        return float("inf")
    if not _is_inexact(a):
        return 0.0 if torch.equal(a, b) else float("inf")
    wide = torch.complex128 if a.is_complex() else torch.float64
    a, b = a.to(wide), b.to(wide)
    finite = a.isfinite()
    if not torch.equal(finite, b.isfinite()) or not torch.equal(a[~finite].nan_to_num(), b[~finite].nan_to_num()):
        return float("inf")
    return _largest(a[finite] - b[finite])


_THOROUGH_CHECKS = 3  # so many batches whose rows differ are checked thoroughly
_ROWS_ALONE = 8  # rows that a thorough check runs alone; with three, one batch in twenty passed though half of its labels were wrong
_TIMES_AGAIN = 4  # how often a row has to give the same alone, if the model draws random numbers
_SHARE = 64  # after the thorough checks, checking takes one part in so many of the time that the model runs
_MOST_KEYS = 256  # kinds of inputs whose outputs' shapes are remembered
_NOISE = 4.0  # a difference may be so many times the rounding that was measured
_MOST_NOISE = 10.0  # and the rounding so many times what is usual for the type, as in a model that computes in bfloat16 and returns float32
_COARSEST = 0.2  # a difference above this part of the largest number is never rounding
_SMALL = 0.01  # a row's differences are compared with at least this part of the batch's largest number


@dataclass
class ModelHistory:
    """What the checks of one model in this worker have shown."""

    reason: str = ""  # why its rows must not be batched
    thorough_checks_left: int = _THOROUGH_CHECKS
    uniform_checks_left: int = 1  # thorough checks of batches whose rows are all the same, which show less
    largest_checked: int = 1  # rows of the largest batch that was checked thoroughly
    is_nondeterministic: bool = False  # its output for the same input changes, so outputs cannot be compared
    has_odd_row: bool = False  # one row differed, as rounding can cause it near the tie of an argmax
    ran_ns: int = 0
    checked_ns: int = 0
    outlines: dict[Any, Any] = field(default_factory=dict)  # of outputs, by the outlines of their inputs


class RowChecker:
    """`copy_inputs` is called before a batch runs, `check` after it. `check` raises Unbatchable, with the reason."""

    def __init__(self) -> None:
        self._random = random.Random()  # its own generator, so that the model draws the same numbers with and without checks

    def copy_inputs(self, model: BuiltModel, inputs: tuple[Any, ...], rows: int) -> tuple[Any, ...] | None:
        """A copy of the inputs of a batch that will be checked, because the model may write to them; None if it will not be."""
        if not model.is_checked or rows < 2:
            return None
        history = _history_of(model)
        if history.is_nondeterministic or history.reason:
            return None
        is_due = self._needs_thorough_check(history, inputs, rows) or history.checked_ns * _SHARE < history.ran_ns
        return own(inputs) if is_due else None

    def check(
        self, model: BuiltModel, call: Call, inputs: tuple[Any, ...], inputs_copy: tuple[Any, ...] | None, output: Any, took_ns: int
    ) -> Any:
        """The output to cut into requests: the given one, or, if a single row is in doubt, what the rows gave one by one."""
        if not model.is_checked:
            return output
        history = _history_of(model)
        history.ran_ns += took_ns
        try:
            if history.reason:
                raise Unbatchable(history.reason)
            self._check_outline(history, inputs, output)
            if inputs_copy is None:
                return output
            started = time.monotonic_ns()
            check = BatchCheck(history, call, inputs_copy, output, self._random)
            with seeded(self._random.getrandbits(63)):  # the checks must not change which numbers the model draws
                is_thorough = self._needs_thorough_check(history, inputs_copy, check.rows)
                checked = check.check_thoroughly() if is_thorough else check.check_one_row()
            if not check.was_thorough:
                history.checked_ns += time.monotonic_ns() - started
            return checked
        except Unbatchable as error:
            history.reason = str(error)
            raise

    def _needs_thorough_check(self, history: ModelHistory, inputs: tuple[Any, ...], rows: int) -> bool:
        if rows >= 2 * history.largest_checked:
            return True
        return (history.thorough_checks_left > 0 and rows_vary(inputs)) or history.uniform_checks_left > 0

    def _check_outline(self, history: ModelHistory, inputs: tuple[Any, ...], output: Any) -> None:
        """Inputs of the same shape must give rows of the same shape; otherwise the shape depends on the rest of the batch."""
        key = outline_of(inputs)
        if key is None or history.is_nondeterministic:
            return
        outline = outline_of(output)
        before = history.outlines.setdefault(key, outline)
        if before != outline:
            raise Unbatchable("rows of inputs of the same shape have another shape in another batch")
        if len(history.outlines) > _MOST_KEYS:
            history.outlines.clear()


def _history_of(model: BuiltModel) -> ModelHistory:
    if model.history is None:
        model.history = ModelHistory()
    return model.history  # type: ignore[no-any-return]


class BatchCheck:
    """One batch, whose rows are run again in other ways and compared."""

    def __init__(self, history: ModelHistory, call: Call, inputs: tuple[Any, ...], output: Any, source: random.Random) -> None:
        self._history, self._call, self._inputs, self._output, self._random = history, call, inputs, output, source
        self.rows = int(_tensors(output)[0].shape[0])  # all tensors have as many
        self.was_thorough = False
        self._scale = largest(output)
        self._tolerances = tolerances(output)
        self._noise = [0.0] * len(self._scale)  # the rounding that was measured, for each tensor
        self._different: set[int] = set()
        self._largest_difference = 0.0
        self._alone: dict[int, Any] = {}
        self._draws = False  # whether it draws random numbers; some models draw even where their output does not depend on it

    def check_one_row(self) -> Any:
        """Run one row alone; if it differs, check the batch thoroughly."""
        self._compare_alone(self._random.randrange(self.rows))
        return self.check_thoroughly() if self._different else self._output

    def check_thoroughly(self) -> Any:
        history, self.was_thorough = self._history, True
        self._different.clear()
        if self._is_nondeterministic() or not self._is_noise_measured():
            history.is_nondeterministic = True
            return self._output
        for row in {0, self.rows - 1, *self._random.sample(range(self.rows), min(self.rows, _ROWS_ALONE))}:
            self._compare_alone(row)
        if self.rows > 3:
            middle = self.rows // 2
            self._compare_among_fewer([*range(middle - 1, -1, -1)])
            self._compare_among_fewer([*range(self.rows - 1, middle - 1, -1)])
        return self._verdict()

    def _verdict(self) -> Any:
        """Several different rows prove that rows depend on each other. A single one may be rounding near the tie of an argmax: then all
        rows run one by one, and a second such row soon after counts as proof."""
        history = self._history
        if self._different and self._draws and not self._is_proof():
            history.is_nondeterministic = True
            return self._output
        if len(self._different) > 1 or (self._different and history.has_odd_row):
            raise Unbatchable(self._reason())
        if self._different:
            history.has_odd_row, history.thorough_checks_left = True, _THOROUGH_CHECKS
            return self._one_by_one()
        if rows_vary(self._inputs):
            history.thorough_checks_left -= 1
            history.has_odd_row = history.has_odd_row and history.thorough_checks_left > 0
        history.uniform_checks_left = 0
        history.largest_checked = max(history.largest_checked, self.rows)
        return self._output

    def _reason(self) -> str:
        if self._largest_difference == float("inf"):
            return "a row gives something else alone, or among other rows, than it gave in the batch"
        how_far = f"{self._largest_difference:.2g} of its largest number"
        return f"a row alone, or among other rows, differs from what it gave in the batch by {how_far}"

    def _is_nondeterministic(self) -> bool:
        """Whether the model returns something else for the same row the second time."""
        before = random_states()
        self._alone[0] = self._run_alone(0)
        self._draws = random_states() != before
        return not self._is_within_noise(self._run_alone(0))

    def _is_proof(self) -> bool:
        """Whether differences of a model that draws numbers cannot be chance: all rows differ, and each is always the same alone."""
        if not set(self._alone) <= self._different:
            return False
        again = ((found, self._run_alone(row)) for row, found in self._alone.items() for _ in range(_TIMES_AGAIN))
        return all(max(differences(found, other)) <= max(self._noise) for found, other in again)

    def _is_noise_measured(self) -> bool:
        """Measure rounding, which depends on the size of the batch: a row among copies of itself differs from the row alone by nothing
        else. False if it differs by more and the model draws random numbers, which may be why."""
        copies = self._run_rows([0] * self.rows)
        for place in (0, self.rows - 1):
            if not self._is_within_noise(own(copies, [place])):
                if self._draws:
                    return False
                raise Unbatchable("a row among copies of itself does not give what it gives alone")
        return True

    def _is_within_noise(self, again: Any) -> bool:
        """Whether an output for the first row differs from the first by rounding only; that difference is noted as the model's noise."""
        found = differences(self._alone[0], again)
        self._noise = [max(pair) for pair in zip(self._noise, found)]
        sizes = self._sizes(self._alone[0], again)
        limits = [min(_COARSEST, _MOST_NOISE * tolerance) * size for size, tolerance in zip(sizes, self._tolerances)]
        return all(difference <= limit for difference, limit in zip(found, limits))

    def _sizes(self, a: Any, b: Any) -> list[float]:
        """The number that a difference is compared with, for each tensor: the row's largest, or a part of the batch's largest."""
        return [max(one, two, _SMALL * scale) for one, two, scale in zip(largest(a), largest(b), self._scale)]

    def _compare_alone(self, row: int) -> None:
        if row not in self._alone:
            self._alone[row] = self._run_alone(row)
        self._compare(row, self._alone[row])

    def _compare_among_fewer(self, places: list[int]) -> None:
        output = self._run_rows(places)
        for i, row in enumerate(places):
            self._compare(row, own(output, [i]))

    def _compare(self, row: int, found: Any) -> None:
        among = own(self._output, [row])
        sizes = self._sizes(found, among)
        for difference, size, tolerance, noise in zip(differences(found, among), sizes, self._tolerances, self._noise):
            if difference > max(_NOISE * noise, tolerance * size):
                self._different.add(row)
                self._largest_difference = max(self._largest_difference, difference / size if size else float("inf"))

    def _run_alone(self, row: int) -> Any:
        """The output for one row alone. It has to be one row, of the same type, with the same plain values beside it as in the batch."""
        output = self._run_rows([row])
        cut(output, [1])
        try:
            joined([output, self._output], _is_tensor, lambda tensors: tensors[0])
        except Uneven:
            raise Unbatchable("the type of its rows, or what it returns beside them, depends on the batch") from None
        return own(output)

    def _run_rows(self, places: list[int]) -> Any:
        """The model's output for these rows. It accepted the whole batch, so an exception may be a passing one: it gets a second try."""
        for is_last in (False, True):
            try:
                return self._call(own(self._inputs, places))
            except Exception as error:
                check_gpu_usable(error)
                if is_out_of_memory(error):
                    raise
                if is_last:
                    what = "a single row" if len(places) == 1 else "some of the rows"
                    raise Unbatchable(f"it raises {type(error).__name__} for {what} of a batch that it takes") from error
        return None

    def _one_by_one(self) -> Any:
        outputs = [self._alone[row] if row in self._alone else self._run_alone(row) for row in range(self.rows)]
        try:
            return joined(outputs, _is_tensor, torch.cat)
        except (Uneven, RuntimeError):
            raise Unbatchable("what rows give one by one does not make one output") from None


def _is_tensor(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor)
