"""A collective is called by some ranks only

## What it is

`barrier()`, `all_reduce()`, `broadcast()` and the like complete only when every rank of the group has called
them. Here the call stands in code that only some ranks run, typically under `if rank == 0:`, and those ranks
wait for ever.

## Why it happens

A barrier "for rank 0", a metric that is reduced inside the logging branch, or a library function (saving,
evaluating, gathering objects) that contains a collective and is called from the main process only.

## How to fix it

Move the collective out of the branch; keep only the local work inside.

## Before

```python
if rank == 0:
    save_checkpoint(model)
    dist.barrier()                  # only rank 0 ever gets here
```

## After

```python
if rank == 0:
    save_checkpoint(model)
dist.barrier()                      # all ranks meet here
```
"""

SEVERITY = "error"
NEXT = ("move the collective out of the branch that only some ranks take",)
