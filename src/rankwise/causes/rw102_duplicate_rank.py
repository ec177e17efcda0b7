"""Two processes claim the same rank

## What it is

Every process needs its own rank between 0 and `WORLD_SIZE - 1`. Two of them gave the same number, so another
number is missing and the group can never be complete.

## Why it happens

`RANK` was computed from the local rank only (every node counts from 0), copied from a shell profile to all
processes, or taken from a variable that the launcher does not set. Two copies of rank 0 also both try to open
the store's port.

## How to fix it

Use the rank the launcher gives. Where you compute it yourself, it is `node_rank * processes_per_node +
local_rank`.

## Before

```python
rank = int(os.environ["LOCAL_RANK"])                  # 0 … 7 on every node
dist.init_process_group("nccl", rank=rank, world_size=16)
```

## After

```python
dist.init_process_group("nccl")                       # RANK and WORLD_SIZE as torchrun set them
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))  # the local rank is for the device only
```
"""

SEVERITY = "error"
NEXT = ("give each process its own rank: node_rank * processes_per_node + local_rank",)
