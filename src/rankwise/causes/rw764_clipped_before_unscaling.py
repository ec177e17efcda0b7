"""Gradients are clipped while they are still multiplied by the loss scale

## What it is

`GradScaler` multiplies the loss, and with it all gradients, by a large number. Clipped in that state, they are all cut
down to the limit divided by the scale: training all but stops.

## Why it happens

`clip_grad_norm_` was written before `scaler.step()`, without `scaler.unscale_()`.

## How to fix it

Unscale first.

## Before

```python
scaler.scale(loss).backward()
clip_grad_norm_(model.parameters(), 1.0)
scaler.step(optimizer)
```

## After

```python
scaler.scale(loss).backward()
scaler.unscale_(optimizer)
clip_grad_norm_(model.parameters(), 1.0)
scaler.step(optimizer)
```
"""

SEVERITY = "warning"
NEXT = ("call scaler.unscale_(optimizer) before clipping",)
