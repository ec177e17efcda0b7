"""Gradients are reduced in every micro-step of an accumulation window

## What it is

Several backwards come before each optimizer step, and DDP averages all gradients between the ranks in each of
them. Only the last is needed. The result is right; the network carries it several times.

## Why it happens

DDP reduces whenever a forward was made outside `no_sync()`. Accumulation written for one process does not know it.

## How to fix it

Make all micro-steps but the last inside `model.no_sync()`, forward and backward.

## Before

```python
for micro in range(8):
    (model(x[micro]).mean() / 8).backward()            # eight all-reduces of all gradients
optimizer.step()
```

## After

```python
for micro in range(8):
    with contextlib.nullcontext() if micro == 7 else model.no_sync():
        (model(x[micro]).mean() / 8).backward()
optimizer.step()
```

## When to ignore it

When memory is tight: inside `no_sync()` DDP keeps unreduced gradients, which some sharding schemes cannot.
"""

SEVERITY = "info"
NEXT = ("make the forward and backward of all micro-steps but the last inside model.no_sync()",)
