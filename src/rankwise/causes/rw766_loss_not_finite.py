"""The loss stopped being a finite number on some ranks

## What it is

One rank's loss became infinite or not a number. The all-reduce carries its gradients to all ranks, so from the next step
on every weight of every rank is lost.

## Why it happens

A broken sample in that rank's part of the data, a division by zero, a logarithm of zero.

## How to fix it

Look at that batch. Decide on all ranks together whether to skip a step (`all_reduce` of a flag).

## Before

```python
loss.backward()
optimizer.step()
```

## After

```python
bad = torch.tensor(float(not torch.isfinite(loss)))
dist.all_reduce(bad)
if not bad:
    loss.backward()
    optimizer.step()
```
"""

SEVERITY = "warning"
NEXT = ("look at the named rank's batch of that step, and skip such a step on all ranks together",)
