"""The accumulated loss is not divided by the number of micro-steps

## What it is

Gradients of several backwards are added up. Where each loss is a mean, their sum is that many times too large, as if
the learning rate were.

## Why it happens

Accumulation was added to a loop, and the division forgotten, or it divides by another number.

## How to fix it

Divide each loss by the number of micro-steps of its window.

## Before

```python
for micro in range(4):
    model(x[micro]).mean().backward()
optimizer.step()
```

## After

```python
for micro in range(4):
    (model(x[micro]).mean() / 4).backward()
optimizer.step()
```

## When to ignore it

When the learning rate was chosen for it, or the gradients are divided elsewhere.
"""

SEVERITY = "info"
NEXT = ("divide each micro-step's loss by the number of micro-steps of its window",)
