"""The last, shorter accumulation window is dropped or scaled wrongly

## What it is

The number of batches of an epoch is no multiple of the window. The gradients of the last few batches are thrown away,
mixed into the next epoch's first step, or divided by the full window's length.

## Why it happens

`if (i + 1) % window == 0: step()` never steps for the rest.

## How to fix it

Step at the end of the data too, and divide by the number of batches in that window.

## Before

```python
for i, x in enumerate(loader):
    (model(x).mean() / 4).backward()
    if (i + 1) % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()
```

## After

```python
for i, x in enumerate(loader):
    first = i - i % 4
    (model(x).mean() / min(4, len(loader) - first)).backward()
    if (i + 1) % 4 == 0 or i + 1 == len(loader):
        optimizer.step()
        optimizer.zero_grad()
```
"""

SEVERITY = "info"
NEXT = ("step at the end of the data too, and divide the loss by the length of that last window",)
