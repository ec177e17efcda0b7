"""A rank was killed because memory ran out

## What it is

The kernel's out-of-memory killer ended the process (SIGKILL). The kernel log or the memory control group proves
it. This is the host's memory, not the GPU's.

## Why it happens

Each rank loads the whole data set; DataLoader workers multiply it (`workers × ranks` copies of what they
touch); Python lists grow over the epoch (`losses.append(loss)` keeps the graph alive); all ranks load a
checkpoint at once; the container's limit is low.

## How to fix it

Keep less: load lazily, map files into memory, use fewer workers and a smaller `prefetch_factor`, call `.item()`
before storing a loss, and load checkpoints with `mmap=True`. Or raise the limit.

## Before

```python
losses.append(loss)                                    # keeps every step's graph
state = torch.load("last.pt")                          # on all ranks at once, whole
```

## After

```python
losses.append(loss.item())
state = torch.load("last.pt", mmap=True, map_location="cpu")
```
"""

SEVERITY = "error"
NEXT = ("use less host memory per rank (workers, prefetch, stored tensors), or raise the limit",)
