"""Ranks wait for each other in collectives of different groups

## What it is

Rank A waits in one group for rank B, and rank B waits in another group for rank A, directly or around a longer
circle. Each collective is correct by itself; their order across the groups is not.

## Why it happens

Ranks that are members of several groups (data parallel and tensor parallel, say) enter them in a different
order: one starts with the row, the other with the column.

## How to fix it

Give the groups one order and let every rank enter them in it. For transfers that may overlap, start them all
with `async_op=True` and wait afterwards; NCCL still wants the same order of starts on every rank.

## Before

```python
first, second = (row, column) if rank % 2 == 0 else (column, row)
dist.all_reduce(x, group=first)
dist.all_reduce(x, group=second)
```

## After

```python
dist.all_reduce(x, group=row)                # all ranks: rows first, then columns
dist.all_reduce(x, group=column)
```
"""

SEVERITY = "error"
NEXT = ("use the groups in the same order on every rank that is in more than one of them",)
