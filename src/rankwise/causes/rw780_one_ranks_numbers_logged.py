"""The log shows the numbers of one rank only

## What it is

Rank 0 prints its own loss or metric as if it were the job's. It is that of its part of the data; the others' never enter
the log.

## Why it happens

`if rank == 0: print(loss.item())`, with no reduction before it.

## How to fix it

Reduce before logging: sums and counts, on all ranks.

## Before

```python
if dist.get_rank() == 0:
    print(loss.item())
```

## After

```python
total = loss.detach().clone()
dist.all_reduce(total)
if dist.get_rank() == 0:
    print((total / dist.get_world_size()).item())
```

## When to ignore it

When the number is only a sign of life.
"""

SEVERITY = "info"
NEXT = ("all_reduce the sum and the count on all ranks before rank 0 logs",)
