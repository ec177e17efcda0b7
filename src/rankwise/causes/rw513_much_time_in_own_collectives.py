"""A good part of each step passes in collectives that the script calls itself

## What it is

Beside DDP's own reduction, the script calls collectives at every step (a metric, a check, a barrier), and waits in
them.

## Why it happens

A loss that is averaged for the log at every step, `barrier()` for safety, objects gathered with pickle.

## How to fix it

Reduce what is logged only when it is logged, several numbers in one tensor, and leave barriers out.

## Before

```python
for x in batches:
    loss = step(x)
    dist.all_reduce(loss)                  # at every step, for a log line at every hundredth
```

## After

```python
for n, x in enumerate(batches):
    loss = step(x)
    if n % 100 == 0:
        dist.all_reduce(loss)
```
"""

SEVERITY = "info"
NEXT = ("reduce what is logged only when it is logged, and leave out barriers in the loop",)
