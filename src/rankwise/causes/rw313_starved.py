"""A rank makes next to no progress: the machine is swapping or has no CPU left

## What it is

The rank is neither blocked nor looping. It gets hardly any CPU time, or it waits for pages that the system has
to fetch from swap or from disk.

## Why it happens

More runnable threads than cores (every rank and every DataLoader worker with as many OpenMP threads as the
machine has cores), a CPU limit of the container, a neighbour on the node, memory that no longer fits.

## How to fix it

Set `OMP_NUM_THREADS` to the cores divided by the ranks, use fewer workers, raise the container's CPU limit, use
less memory.

## Before

```console
$ torchrun --nproc-per-node 8 train.py --workers 16       # 128 workers on 16 cores
```

## After

```console
$ OMP_NUM_THREADS=2 torchrun --nproc-per-node 8 train.py --workers 1
```
"""

SEVERITY = "warning"
NEXT = ("look at the node's load, memory and CPU limit; fewer workers and threads per rank",)
