"""The optimizer's settings are different between ranks

## What it is

The ranks have the same gradients and make different steps, because the learning rate, weight decay or momentum is not the
same. Their weights drift apart.

## Why it happens

A learning rate scaled by something local (the number of batches, the rank), a scheduler stepped on some ranks only, or
`ReduceLROnPlateau` fed with each rank's own loss.

## How to fix it

Compute such numbers from what all ranks share; reduce the loss before a scheduler sees it.

## Before

```python
scheduler.step(val_loss)                         # each rank's own
```

## After

```python
dist.all_reduce(val_loss)
scheduler.step(val_loss / dist.get_world_size())
```
"""

SEVERITY = "warning"
NEXT = ("give the optimizer and its scheduler the same numbers on every rank",)
