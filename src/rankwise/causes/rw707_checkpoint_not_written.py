"""A checkpoint could not be written

## What it is

The disk is full, the quota is used up, the folder is read-only or gone. Nothing is left of the attempt, earlier checkpoints are
untouched, and the training goes on.

## Why it happens

Checkpoints are larger than expected (the optimizer's state is often twice the model), logs fill the same disk, a network file
system went away.

## How to fix it

Make room: the next checkpoint will be written then. `keep=` says how many are kept; one more than that has to fit.

## Before

```python
checkpoints = train.Checkpoints("/home/me/runs", keep=20, model=model, optimizer=optimizer)
```

## After

```python
checkpoints = train.Checkpoints("/scratch/runs", keep=2, model=model, optimizer=optimizer)
```
"""

SEVERITY = "error"
NEXT = ("make room on that disk, or keep fewer checkpoints; the training goes on",)
