"""The optimizer's state is different between ranks

## What it is

Momenta (or the second moments of Adam) are not the same on all ranks, so equal gradients lead to different steps.

## Why it happens

The state was loaded on one rank only, or gradients differed for a while.

## How to fix it

Load the optimizer's state on every rank.

## Before

```python
if dist.get_rank() == 0:
    optimizer.load_state_dict(state["optimizer"])
```

## After

```python
optimizer.load_state_dict(state["optimizer"])
```
"""

SEVERITY = "warning"
NEXT = ("load the optimizer's state on every rank",)
