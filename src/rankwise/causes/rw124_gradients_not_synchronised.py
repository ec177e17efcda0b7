"""After the first backward the ranks have different gradients

## What it is

In data-parallel training every rank must hold the same gradients when the optimizer steps. They differ, so each
rank is training a model of its own. The loss still falls, which is why this is rarely noticed.

## Why it happens

The model was not wrapped in DistributedDataParallel; the forward went through `model.module`, past the wrapper;
the backward ran inside `no_sync()`; a parameter was added or replaced after wrapping; gradients were changed by
something that differs between ranks before they were compared.

## How to fix it

Call the wrapped model, not the module inside it, and let the last backward before each step be outside
`no_sync()`.

## Before

```python
model = DistributedDataParallel(Net())
loss = criterion(model.module(x), y)                 # past DDP: nothing is averaged
loss.backward()
```

## After

```python
model = DistributedDataParallel(Net())
loss = criterion(model(x), y)
loss.backward()
```
"""

SEVERITY = "error"
NEXT = ("call the DDP-wrapped model, outside no_sync(), in the last backward before the step",)
