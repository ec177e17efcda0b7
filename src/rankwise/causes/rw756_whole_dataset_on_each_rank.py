"""Each rank walks through the whole dataset

## What it is

In one epoch every rank draws every sample, in an order of its own. An epoch takes as many steps as with one rank, and
the samples are seen as many times as there are ranks.

## Why it happens

`DataLoader(shuffle=True)` without a `DistributedSampler`; different seeds keep the batches apart.

## How to fix it

Share the samples out with a `DistributedSampler`.

## Before

```python
loader = DataLoader(data, shuffle=True)
```

## After

```python
loader = DataLoader(data, sampler=DistributedSampler(data))
```

## When to ignore it

When an epoch is only a word for so many steps.
"""

SEVERITY = "info"
NEXT = ("give the DataLoader sampler=DistributedSampler(dataset)",)
