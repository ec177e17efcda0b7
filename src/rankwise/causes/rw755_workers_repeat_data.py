"""Every DataLoader worker yields the same data

## What it is

An iterable dataset is copied into each worker, and each copy yields everything: with `num_workers=4` the loop gets each
batch four times.

## Why it happens

`__iter__` does not ask `torch.utils.data.get_worker_info()` for its part.

## How to fix it

Split by worker, and by rank first.

## Before

```python
def __iter__(self):
    yield from self.items
```

## After

```python
def __iter__(self):
    info = get_worker_info()
    worker, workers = (info.id, info.num_workers) if info else (0, 1)
    part, parts = rank * workers + worker, world_size * workers
    yield from itertools.islice(self.items, part, None, parts)
```
"""

SEVERITY = "warning"
NEXT = ("split the items by get_worker_info() in __iter__",)
