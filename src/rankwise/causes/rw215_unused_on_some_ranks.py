"""Parameters got no gradient on some ranks only

## What it is

In this step some ranks used a part of the model and others did not. The ranks that used it reduce those
gradients and wait; the others never send theirs.

## Why it happens

`forward` branches on local data: a mixture of experts, a task per batch, an auxiliary loss only if a sample has
a label, layers that are dropped at random with a seed of each rank's own.

## How to fix it

`find_unused_parameters=True` makes DDP tell the others that this rank has nothing to add. Or keep every
parameter in the graph with a term that is zero. A random choice can be made the same on all ranks by drawing it
from one shared generator.

## Before

```python
def forward(self, x, labels):
    loss = self.main(x)
    if labels is not None:                   # true on some ranks only
        loss = loss + self.aux(x, labels)
    return loss
```

## After

```python
model = DistributedDataParallel(net, find_unused_parameters=True)
```
"""

SEVERITY = "error"
NEXT = ("pass find_unused_parameters=True, or let every rank use the same parameters in every step",)
