"""The ranks wait for their data

## What it is

A good part of each step passes in the DataLoader before the batch is there, on all ranks. The processor or GPU that
trains is idle meanwhile.

## Why it happens

The dataset reads or decodes in the training process (`num_workers=0`), there are too few workers, or the storage is
slow.

## How to fix it

More workers, pinned memory for GPUs, and batches fetched ahead. If that does not help, the storage is what is slow.

## Before

```python
loader = DataLoader(data, batch_size=32)
```

## After

```python
loader = DataLoader(data, batch_size=32, num_workers=4, pin_memory=True, prefetch_factor=4, persistent_workers=True)
```
"""

SEVERITY = "info"
NEXT = ("raise num_workers of the DataLoader",)
