"""Gradients are not averaged between the ranks before the step

## What it is

When the optimizer steps, the ranks hold different gradients. Each then trains a model of its own. The loss still falls,
which is why this is rarely noticed.

## Why it happens

The forward went through `model.module`, past DDP. The forward of the last micro-step was made inside `no_sync()` (the
forward decides, not the backward). A second backward came after the one that reduced. Gradients were changed on
each rank in its own way after the backward.

## How to fix it

Call the wrapper, and leave `no_sync()` for the last micro-step before each step.

## Before

```python
loss = criterion(model.module(x), y)                 # past DDP: nothing is averaged
loss.backward()
```

## After

```python
loss = criterion(model(x), y)
loss.backward()
```

## When to ignore it

Local SGD, which averages the weights now and then instead.
"""

SEVERITY = "warning"
NEXT = ("call the DDP wrapper, outside no_sync(), in the last forward before each step",)
