"""The ranks reduce the same tensors in a different order

## What it is

Collectives match by order alone. The ranks call the same ones, but give them different tensors: one metric's number is
added to another's, one layer's gradient to another layer's. Where the shapes agree, nothing fails.

## Why it happens

A loop over a dict filled in the order of the local data, over a set, or over anything sorted by local values.

## How to fix it

Loop in an order that is the same on all ranks.

## Before

```python
for name, value in hits.items():                 # cat, dog here; dog, cat there
    dist.all_reduce(value)
```

## After

```python
for name in sorted(hits):
    dist.all_reduce(hits[name])
```
"""

SEVERITY = "warning"
NEXT = ("loop over sorted(names), so that every rank has the same order",)
