"""Ranks go a different number of rounds in a loop that calls collectives

## What it is

Every round of a loop calls a collective, and one rank has left the loop while another is still in it. They did not go
the same number of rounds, so one of them waits for a partner that does not come.

## Why it happens

What the loop goes over has another length on each rank: a list of files, a dictionary of meters of which one exists on
one rank only, `range(start_epoch, epochs)` after only one rank found its checkpoint. It is rarely visible in the loop
itself: look at where its length comes from.

## How to fix it

Agree on the number of rounds before the loop, or go over something that is the same on every rank by construction.

## Before

```python
for name in meters:                         # one rank met a sample that made it add a meter
    dist.all_reduce(meters[name].total)
```

## After

```python
names = [None] * dist.get_world_size()
dist.all_gather_object(names, sorted(meters))
for name in sorted(set().union(*names)):    # the same names, in the same order, everywhere
    dist.all_reduce(meters[name].total if name in meters else zero.clone())
```
"""

SEVERITY = "error"
NEXT = ("find out where the length of the loop comes from, and make it the same on every rank before the loop begins",)
