"""Ranks reduce with different operations

## What it is

The same `all_reduce` or `reduce` was called with `SUM` on one rank and `MAX` (or another operation) on another.
gloo reports nothing: each rank reduces its own part of the tensor with its own operation, so one half is a sum
and the other a maximum, on all ranks alike.

## Why it happens

The operation comes from a configuration or a metric object that is not the same on all ranks.

## How to fix it

Write the operation into the call, or take it from something all ranks share.

## Before

```python
dist.all_reduce(value, op=dist.ReduceOp.MAX if rank == 0 else dist.ReduceOp.SUM)
```

## After

```python
dist.all_reduce(value, op=dist.ReduceOp.MAX)
```
"""

SEVERITY = "error"
NEXT = ("pass the same op on every rank",)
