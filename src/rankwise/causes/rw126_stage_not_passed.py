"""A rank did not pass a stage of the start-up in time

## What it is

All ranks are registered and can be heard, but one of them has not finished the named stage, and the others cannot
go on without it.

## Why it happens

For *parameters agreed* and *first gradient synchronised*: the rank did not make the call that the others made, or
is still busy with something only it does. For the stages before: its backend is stuck, often because it waits for a
rank that failed there, whose message comes first.

## How to fix it

Look at the named rank's output. Where the call stands under `if rank == 0`, move it out: every rank has to make it.

## Before

```python
with rankwise.session() as job:
    if job.is_main:
        job.agree(model)                  # the others never come
```

## After

```python
with rankwise.session() as job:
    job.agree(model)
```
"""

SEVERITY = "error"
NEXT = ("look at the named rank's output, and make the call on every rank",)
