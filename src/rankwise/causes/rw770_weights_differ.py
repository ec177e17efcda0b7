"""The ranks' weights are no longer the same

## What it is

Data-parallel training keeps one model, a copy on each rank. Here the copies differ, so what is saved is one rank's, and
what is reported may be another's.

## Why it happens

A step made on some ranks only, weights changed outside the optimizer (noise, clipping, re-initialisation) with random
numbers of each rank, gradients that were never reduced.

## How to fix it

Change weights on all ranks in the same way: with the same random numbers, or on rank 0 followed by a broadcast.

## Before

```python
if dist.get_rank() == 0:
    reset(model.module.head)
```

## After

```python
if dist.get_rank() == 0:
    reset(model.module.head)
for p in model.module.head.parameters():
    dist.broadcast(p.data, src=0)
```

## When to ignore it

Local SGD and other schemes that let ranks train apart for a while.
"""

SEVERITY = "warning"
NEXT = ("look at what changes the weights right before the named step, and do it on all ranks alike",)
