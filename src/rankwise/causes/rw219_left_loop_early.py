"""A rank left the training loop earlier than the others

## What it is

One rank ended its loop by its own decision (early stopping, a time limit, a target reached) and went on to what
comes after, while the others are still training and wait for it.

## Why it happens

The condition is computed from local values: the rank's own validation loss, its own clock, its own count of bad
steps. They differ slightly, so one rank breaks an epoch before the rest.

## How to fix it

Decide together: reduce the wish to stop, or let rank 0 decide and broadcast.

## Before

```python
if early_stopping.should_stop(val_loss):      # val_loss of this rank's shard
    break
```

## After

```python
stop = torch.tensor([float(early_stopping.should_stop(val_loss))])
dist.all_reduce(stop, op=dist.ReduceOp.MAX)
if stop.item():
    break                                     # all ranks, in the same epoch
```
"""

SEVERITY = "error"
NEXT = ("let all ranks stop in the same step: all_reduce or broadcast the decision",)
