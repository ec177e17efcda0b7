"""The loop that `rankwise predict` is compared with: what one writes by hand for a Parquet file, a DataLoader and a model."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from predict_models import COLUMNS, MODELS
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

Pair = tuple[torch.Tensor, torch.Tensor]


class Rows(IterableDataset[Pair]):
    """Every DataLoader worker reads the file and yields its share of the batches."""

    def __init__(self, path: str, size: int) -> None:
        self._path, self._size = path, size

    def __iter__(self) -> Iterator[Pair]:
        worker = get_worker_info()
        for i, batch in enumerate(pq.ParquetFile(self._path).iter_batches(self._size, columns=["id", *COLUMNS])):
            if worker is None or i % worker.num_workers == worker.id:
                x = np.stack([batch.column(name).to_numpy() for name in COLUMNS], axis=1)
                yield torch.tensor(batch.column("id").to_numpy()), torch.from_numpy(x)


def main(path: str, output: str, model_name: str, size: str, workers: str) -> None:
    model = MODELS[model_name]().eval()
    schema = pa.schema([("id", pa.int64()), ("output", pa.float32())])
    loader = DataLoader(Rows(path, int(size)), batch_size=None, num_workers=int(workers))
    with torch.inference_mode(), pq.ParquetWriter(output, schema) as writer:
        for ids, x in loader:
            writer.write_table(pa.table([ids.numpy(), model(x).squeeze(1).numpy()], schema=schema))


if __name__ == "__main__":
    main(*sys.argv[1:])
