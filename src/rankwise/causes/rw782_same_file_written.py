"""Several ranks write the same file

## What it is

Two or more ranks write to one path at about the same time. What is in it afterwards is one rank's, or a mixture that
cannot be read.

## Why it happens

`torch.save` without a condition on the rank.

## How to fix it

Write on one rank, or to a path that has the rank in it.

## Before

```python
torch.save(model.state_dict(), "last.pt")
```

## After

```python
if dist.get_rank() == 0:
    torch.save(model.state_dict(), "last.pt")
dist.barrier()
```

## When to ignore it

When the path is on a disk of each host's own and one rank per host writes.
"""

SEVERITY = "warning"
NEXT = ("write on rank 0 only, or to a path with the rank in it",)
