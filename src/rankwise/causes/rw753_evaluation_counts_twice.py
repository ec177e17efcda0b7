"""Evaluation counts some samples twice, or leaves some out

## What it is

`DistributedSampler` gives all ranks the same number of samples. Where the dataset cannot be divided evenly it repeats
some (or drops some, with `drop_last=True`), so a metric over all ranks is not that of the dataset.

## Why it happens

The sampler of the training loader was used for evaluation too.

## How to fix it

Evaluate each sample once: `Subset(data, range(rank, len(data), world_size))`, and reduce sums and counts.

## Before

```python
loader = DataLoader(val, sampler=DistributedSampler(val, shuffle=False))        # 1,001 samples on 4 ranks: 3 repeated
```

## After

```python
loader = DataLoader(Subset(val, range(rank, len(val), world_size)))
```

## When to ignore it

Where the repeated samples are cut off again after gathering, or a fraction of a percent does not matter.
"""

SEVERITY = "info"
NEXT = ("evaluate Subset(data, range(rank, len(data), world_size)), and reduce sums and counts",)
