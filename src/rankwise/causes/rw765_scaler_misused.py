"""The GradScaler is used for one half only

## What it is

The loss is scaled, but the optimizer steps by itself with gradients that are thousands of times too large; or the step
goes through the scaler, which divides gradients that were never multiplied.

## Why it happens

`scaler.scale(loss).backward()` followed by `optimizer.step()`; or `loss.backward()` followed by `scaler.step(optimizer)`.

## How to fix it

Use both halves, and `scaler.update()` after them.

## Before

```python
scaler.scale(loss).backward()
optimizer.step()
```

## After

```python
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()
```
"""

SEVERITY = "warning"
NEXT = ("use scaler.scale(loss).backward(), scaler.step(optimizer) and scaler.update() together",)
