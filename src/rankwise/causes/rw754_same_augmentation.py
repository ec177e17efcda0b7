"""Random augmentation is the same on all ranks

## What it is

The ranks read different samples, but the random numbers that augment them are the same on each: the same angle, crop
and noise at the same moment. The batch of all ranks together has much less variety than it seems.

## Why it happens

All ranks were seeded with the same number, for equal initial weights, and the dataset draws from the same generator.

## How to fix it

Seed by rank after the model was built: `seed + rank`.

## Before

```python
seed_everything(0)                               # on every rank
```

## After

```python
seed_everything(0)
model = DDP(Net())                               # equal weights
seed_everything(0 + dist.get_rank())             # different augmentation
```
"""

SEVERITY = "warning"
NEXT = ("seed random, numpy and torch with seed + rank once the model is built",)
