"""One rank arrives last at most collectives

## What it is

The job moves, and one rank keeps the others waiting. It is known by arrival: the last rank to start a
collective is the slow one. The ranks' step times cannot tell, because the all-reduce makes them all equally
long.

## Why it happens

More data or longer sequences on one rank, a slower or hotter GPU, fewer cores, a slow disk or network on its
node, extra work on rank 0 (logging, metrics).

## How to fix it

Look at what that rank does before the collective. Balance by tokens rather than by samples, move logging out of
the step, check the node.

## Before

```python
batches = DataLoader(data, batch_size=32)                 # 32 long texts here, 32 short ones there
```

## After

```python
batches = DataLoader(data, batch_sampler=TokenBudgetSampler(data, max_tokens=8192))   # a sampler of your own
```

## When to ignore it

When the rank has more to do by design.
"""

SEVERITY = "info"
NEXT = ("look at the named rank's data, node and extra work",)
