"""Ranks call different collectives in the same place of the sequence

## What it is

A backend pairs collectives by their order: the n-th call of one rank with the n-th call of every other. Here
the n-th calls are different operations, such as `all_reduce` on one rank and `broadcast` on another. Neither
can finish, or both finish with wrong data.

## Why it happens

A branch that depends on the rank or on local data leads to different operations: one rank gathers metrics while
another already reduces gradients. A `wait()` or a `synchronize()` in between does not help; only the order of
the calls counts.

## How to fix it

Let all ranks of a group run through the same calls. Where only one rank uses the result, use an operation that
says so (`gather`, `reduce`), and call it on all ranks.

## Before

```python
if rank == 0:
    dist.broadcast(config, src=0)
else:
    dist.all_reduce(config)
```

## After

```python
dist.broadcast(config, src=0)        # the same call on every rank: rank 0 gives, the others receive
```
"""

SEVERITY = "error"
NEXT = ("make all ranks of the group call the same operation at this point",)
