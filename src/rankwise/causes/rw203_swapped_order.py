"""Ranks call the same collectives in a different order

## What it is

All ranks call the same operations, but two of them are swapped on some ranks. The backend pairs by order, so
each side waits for a call that the other makes only later.

## Why it happens

Collectives are issued while looping over something whose order is not the same everywhere: a `set`, a dict
filled in a different order, files listed from disk, or callbacks and threads that finish in any order.

## How to fix it

Loop in an order that is the same on all ranks: sort the names first. Call collectives of one group from one
thread only.

## Before

```python
for name in set(metrics):                    # string hashes, and so the order, differ between processes
    dist.all_reduce(metrics[name])
```

## After

```python
for name in sorted(metrics):
    dist.all_reduce(metrics[name])
```
"""

SEVERITY = "error"
NEXT = ("issue the collectives in the same order on every rank: sort what you loop over",)
