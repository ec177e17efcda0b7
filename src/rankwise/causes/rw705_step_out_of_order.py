"""The parts of a step came in an order that loses gradients

## What it is

A batch was taken and no loss was given for it, a loss came without a batch, or a checkpoint was asked for while the
gradients of a window were only partly there. On one rank alone this makes the others wait, or mixes the gradients of
different steps, silently.

## Why it happens

`continue` on a bad sample, `loss.backward()` or `optimizer.step()` called directly besides the step, saving every so
many batches where the optimizer steps only every few.

## How to fix it

Give a loss for every batch; for one that should not count, `loss * 0`. Save after the optimizer's step.

## Before

```python
for x, y in step.over(loader):
    if x.isnan().any():
        continue                          # the other ranks wait for this one
    with step:
        loss = cross_entropy(model(x), y)
    step.backward(loss)
```

## After

```python
for x, y in step.over(loader):
    usable = not x.isnan().any()
    with step:
        loss = cross_entropy(model(x.nan_to_num()), y)
    stepped = step.backward(loss if usable else loss * 0)
    if stepped and step.count % 100 == 0:
        checkpoints.save(step.count)
```
"""

SEVERITY = "error"
NEXT = ("give step.backward a loss for each batch from step.over, and save only when it returned True",)
