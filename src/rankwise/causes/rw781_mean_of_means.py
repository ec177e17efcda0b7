"""A mean over ranks of different size is taken as if they were equal

## What it is

Each rank computes a mean over its own samples, and these means are averaged. With different numbers of samples per rank
that is not the mean over all samples.

## Why it happens

`all_reduce(accuracy); accuracy /= world_size` after an evaluation with uneven parts.

## How to fix it

Reduce sums and counts, and divide at the end.

## Before

```python
accuracy = torch.tensor(hits / n)
dist.all_reduce(accuracy)
accuracy /= dist.get_world_size()
```

## After

```python
both = torch.tensor([float(hits), float(n)])
dist.all_reduce(both)
accuracy = both[0] / both[1]
```
"""

SEVERITY = "info"
NEXT = ("reduce the sum and the count, and divide after that",)
