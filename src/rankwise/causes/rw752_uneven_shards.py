"""The ranks' parts of the data are of very different size

## What it is

One rank has many more samples, or much larger ones, than another. The others wait for it at every step, or their
epochs end early.

## Why it happens

Files were handed out by number instead of size; long texts ended up on one rank; the split was made by hand.

## How to fix it

Split by samples, and by their size where that varies much (`DistributedSampler`, batches of a fixed number of tokens).

## Before

```python
files = all_files[rank::world_size]              # one of them is ten times the others
```

## After

```python
sampler = DistributedSampler(data)               # the same number of samples for each rank
```

## When to ignore it

Inside `Join`, or where the larger part is meant.
"""

SEVERITY = "info"
NEXT = ("split the data evenly between the ranks, by samples or by their size",)
