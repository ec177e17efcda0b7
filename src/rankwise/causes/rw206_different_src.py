"""Ranks name different sources or destinations

## What it is

`broadcast`, `scatter`, `gather` and `reduce` have one root, and all ranks must name the same one. Here they
differ: several ranks send and none receives, or the other way round.

## Why it happens

The root is computed from the rank itself, from "who was best" without agreeing first, or it is a rank within a
group where the global rank is wanted: `src` and `dst` are global ranks, `group_src` and `group_dst` count
within the group.

## How to fix it

Use a constant, or agree on the root with a collective before you use it.

## Before

```python
best = rank if my_score > threshold else 0       # a different answer on every rank
dist.broadcast(weights, src=best)
```

## After

```python
scores = torch.zeros(world_size)
scores[rank] = my_score
dist.all_reduce(scores)
dist.broadcast(weights, src=int(scores.argmax()))     # everybody computes the same root
```
"""

SEVERITY = "error"
NEXT = ("use the same src or dst on every rank; agree on it first if it is computed",)
