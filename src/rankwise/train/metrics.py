"""Numbers over all ranks: means in which every sample counts once, and predictions in the order of the dataset."""

from __future__ import annotations

import torch
import torch.distributed as dist

from rankwise.causes import load_cause
from rankwise.errors import TrainError
from rankwise.findings import Place
from rankwise.train import group
from rankwise.train.loader import Loader


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
            value = mean.detach().double() if isinstance(mean, torch.Tensor) else mean
            if num_samples:  # the mean over no samples is not a number
                self._sums[name] = self._sums.get(name, 0.0) + value * num_samples
            self._num_samples[name] = self._num_samples.get(name, 0) + num_samples

    def compute(self) -> dict[str, float]:
        """The means over all samples of all ranks since the last time; not a number where there were none. All ranks must call this."""
        mine = {name: (float(self._sums.get(name, 0.0)), count) for name, count in self._num_samples.items()}
        everyone = group.gathered(mine)
        self._sums, self._num_samples = {}, {}
        means = {}
        for name in dict.fromkeys(name for theirs in everyone for name in theirs):
            pairs = [theirs[name] for theirs in everyone if name in theirs]
            total, num_samples = sum(pair[0] for pair in pairs), sum(pair[1] for pair in pairs)
            means[name] = total / num_samples if num_samples else float("nan")
        return means


class Predictions:
    """What the model says of each sample, once each and in the order of the dataset, whichever rank had it.

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

    def add(self, output: torch.Tensor) -> None:
        """Keep a row for each sample of the batch the loader has just yielded."""
        portion = self._loader.current
        rows = len(output) if output.dim() else -1
        if portion is None or rows not in (portion.num_samples, max(portion.num_samples, 1)):
            wanted = portion.num_samples if portion else "no"
            summary = f"an output of shape {tuple(output.shape)} for a batch of {wanted} samples"
            raise _mismatch(summary)
        self._rows.append(output.detach()[: portion.num_samples].clone())  # the model may use its memory again
        self._indices += self._loader.indices_at(range(portion.first, portion.first + portion.num_samples))
        if len(set(self._indices[-2 * portion.num_samples :])) < len(self._indices[-2 * portion.num_samples :]):
            raise _mismatch("two outputs for the same batch")

    def gather(self) -> torch.Tensor:
        """The rows of all ranks, once for each sample, by its place in the dataset. All ranks must call this."""
        rows = torch.cat(self._rows) if self._rows else torch.empty(0)
        by_rank = group.gathered((self._indices, len(self._rows)))
        if len({num_batches for _, num_batches in by_rank}) > 1:
            fewest = min(range(len(by_rank)), key=lambda rank: by_rank[rank][1])
            raise _mismatch(f"rank {fewest} added {by_rank[fewest][1]} batches, others more", fewest)
        indices = [index for indices, _ in by_rank for index in indices]
        everything = _concatenated(rows, [len(indices) for indices, _ in by_rank])
        where = {index: row for row, index in reversed(list(enumerate(indices)))}  # a repeated sample: its first row
        self._rows, self._indices = [], []
        return everything[[where[index] for index in sorted(where)]]


def _concatenated(rows: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    """All ranks' rows behind each other; a collective wants equal shapes, so shorter ones are filled up on the way."""
    if group.world_size() == 1:
        return rows
    device, dtype = rows.device, rows.dtype
    mine = rows.new_zeros((max(sizes), *rows.shape[1:]))
    mine[: len(rows)] = rows
    carried = mine.to(group.traffic_device()).view(torch.uint8) if dtype == torch.bool else mine.to(group.traffic_device())
    parts = [torch.empty_like(carried) for _ in sizes]
    dist.all_gather(parts, carried.contiguous())
    return torch.cat([part[:size] for part, size in zip(parts, sizes)]).to(device, dtype)


def _mismatch(summary: str, rank: int | None = None) -> TrainError:
    rank = group.rank() if rank is None else rank
    return TrainError(load_cause("RW706").finding(summary, certain=True, culprits=(Place(rank=rank),)))
