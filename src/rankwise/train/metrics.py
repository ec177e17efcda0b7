"""Numbers over all ranks: means in which every sample counts once, and predictions in the order of the dataset."""

from __future__ import annotations

from typing import Any

import torch

from rankwise.errors import TrainError, UsageError
from rankwise.train import group
from rankwise.train.errors import train_error
from rankwise.train.loader import Loader, Loop

_Kind = tuple[torch.dtype, tuple[int, ...]]  # dtype and shape of a row


class Means:
    """Means over samples, not over batches or ranks.

    ```python
    means = train.Means()
    for x, y in loader:
        means.add(len(y), loss=loss, accuracy=accuracy)     # each the mean over these samples
    print(means.compute()["accuracy"])                      # on all ranks the same
    ```
    """

    def __init__(self) -> None:
        self._sums: dict[str, torch.Tensor | float] = {}
        self._num_samples: dict[str, int] = {}

    def add(self, num_samples: int, **means: torch.Tensor | float) -> None:
        """Add means over so many samples; they stay on their device until `compute`."""
        for name, mean in means.items():
            if isinstance(mean, torch.Tensor) and mean.numel() != 1:  # raised here on every rank: in `compute` the others would wait
                summary = f"{name} has shape {tuple(mean.shape)}, where one number is wanted"
                raise UsageError(summary, next=("take its mean over the batch",))
            value = mean.detach().double() if isinstance(mean, torch.Tensor) else mean
            if num_samples:  # the mean over no samples is not a number
                self._sums[name] = self._sums.get(name, 0.0) + value * num_samples
            self._num_samples[name] = self._num_samples.get(name, 0) + num_samples

    def compute(self) -> dict[str, float]:
        """The means over all samples of all ranks since the last call; NaN if there were none. All ranks must call this."""
        mine = {name: (float(self._sums.get(name, 0.0)), float(count)) for name, count in self._num_samples.items()}
        everyone = group.gathered(mine, "means.compute()")
        self._sums, self._num_samples = {}, {}
        means = {}
        for name in dict.fromkeys(name for theirs in everyone for name in theirs):
            pairs = [theirs[name] for theirs in everyone if name in theirs]
            total, num_samples = sum(pair[0] for pair in pairs), sum(pair[1] for pair in pairs)
            means[name] = total / num_samples if num_samples else float("nan")
        return means


class Predictions:
    """The model's output for each sample, once each and in the order of the dataset, whichever rank had the sample.

    ```python
    predictions = train.Predictions(loader)
    for x, y in loader:
        predictions.add(model(x).argmax(dim=1))
    everything = predictions.gather()                       # on all ranks the same
    ```
    """

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._rows: list[torch.Tensor] = []
        self._indices: list[int] = []
        self._loop: Loop | None = None  # the loop that these rows belong to
        self._num_taken = 0  # batches that loop had taken when the last rows came

    def add(self, output: torch.Tensor) -> None:
        """Keep a row for each sample of the batch that the loader has just yielded."""
        given: Any = output
        if not isinstance(given, torch.Tensor):
            raise UsageError(
                f"the output is a {type(given).__name__}, not a tensor",
                next=("a tensor with a row for each sample; of several, one Predictions for each",),
            )
        loop = self._loader.loop_of_output(self._loop)
        portion = loop.portion
        rows = len(output) if output.dim() else -1
        if portion is None or rows not in (portion.num_samples, portion.num_rows):
            wanted = portion.num_samples if portion else "no"
            raise _mismatch(f"an output of shape {tuple(output.shape)} for a batch of {wanted} samples")
        if (loop, loop.num_taken) == (self._loop, self._num_taken):
            raise _mismatch("two outputs for the same batch")
        self._loop, self._num_taken = loop, loop.num_taken
        self._rows.append(output.detach()[: portion.num_samples].clone())  # the model may use its memory again
        self._indices += self._loader.indices_of(loop)

    def _check_places(self, where: dict[int, int]) -> None:
        """Row i has to be that of sample i: the last samples may be missing, but none before others."""
        loader, count = self._loader, len(where)
        is_whole = loader.uneven == "drop" and not loader.is_stream and count == len(loader) * loader.global_batch
        if count and max(where) >= count and not is_whole:
            missing = next(index for index in range(count) if index not in where)
            raise _mismatch(f"no output for sample {missing}, though there are some for later ones: rows would stand in the wrong places")

    def gather(self) -> torch.Tensor:
        """The rows of all ranks, one for each sample, in the order of the dataset. All ranks must call this."""
        filled = [rows for rows in self._rows if len(rows)]
        by_rank = group.gathered((self._indices, len(self._rows), {_kind(rows) for rows in filled}), "predictions.gather()")
        if len({num_batches for _, num_batches, _ in by_rank}) > 1:
            fewest = min(range(len(by_rank)), key=lambda rank: by_rank[rank][1])
            raise _mismatch(f"rank {fewest} added {by_rank[fewest][1]} batches, others more", fewest)
        kind = _only_kind([kinds for _, _, kinds in by_rank])
        indices = [index for indices, _, _ in by_rank for index in indices]
        where = {index: row for row, index in reversed(list(enumerate(indices)))}  # of a repeated sample, the first row counts
        self._check_places(where)
        everything = _concatenated(filled, kind)
        self._rows, self._indices, self._loop = [], [], None
        return everything[[where[index] for index in sorted(where)]]


def _kind(rows: torch.Tensor) -> _Kind:
    return rows.dtype, tuple(rows.shape[1:])


def _only_kind(by_rank: list[set[_Kind]]) -> _Kind:
    """Dtype and shape of all rows of all ranks. Raises if they differ: a collective of different kinds gives garbage, or ends a rank."""
    found = {kind: rank for rank, kinds in reversed(list(enumerate(by_rank))) for kind in kinds}
    if len(found) > 1:
        said = [f"{str(dtype).removeprefix('torch.')}{list(shape)} on rank {rank}" for (dtype, shape), rank in list(found.items())[:4]]
        raise _mismatch(f"the rows of the outputs are not alike: {', '.join(sorted(said))}", max(found.values()))
    return next(iter(found), (torch.get_default_dtype(), ()))


def _concatenated(filled: list[torch.Tensor], kind: _Kind) -> torch.Tensor:
    """All ranks' rows behind each other. They are sent as objects, because a collective of tensors needs equal shapes and few dtypes."""
    dtype, shape = kind
    rows = torch.cat(filled).resolve_conj().resolve_neg() if filled else torch.empty((0, *shape), dtype=dtype)
    return torch.cat([theirs.to(rows.device) for theirs in group.gathered(rows.cpu())])


def _mismatch(summary: str, rank: int | None = None) -> TrainError:
    return train_error("RW706", summary, group.rank() if rank is None else rank)
