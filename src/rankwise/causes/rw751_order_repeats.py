"""Every epoch has the same order of samples

## What it is

The sampler shuffles, but begins each epoch with the same seed: the batches of epoch 2 are those of epoch 1, in the same
order. Training loses what shuffling is for.

## Why it happens

`DistributedSampler` derives its order from `seed + epoch`, and `set_epoch` was not called. Or a generator is made anew,
with the same seed, in each epoch.

## How to fix it

Call `sampler.set_epoch(epoch)` before each epoch, on every rank.

## Before

```python
for epoch in range(epochs):
    for x in loader:
        step(x)
```

## After

```python
for epoch in range(epochs):
    sampler.set_epoch(epoch)
    for x in loader:
        step(x)
```

## When to ignore it

When the fixed order is meant; `DistributedSampler(shuffle=False)` says so.
"""

SEVERITY = "warning"
NEXT = ("call sampler.set_epoch(epoch) at the start of every epoch",)
