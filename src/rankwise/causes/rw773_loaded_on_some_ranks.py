"""A checkpoint was loaded on some ranks only

## What it is

DDP sends rank 0's weights to all ranks once, when it wraps the model. A `load_state_dict` on some ranks after that, or
into the optimizer, leaves the ranks with different weights or different momenta.

## Why it happens

`if rank == 0: model.load_state_dict(…)` after the wrapping.

## How to fix it

Load on every rank, or before the wrapping. The optimizer's state has to be loaded on every rank.

## Before

```python
model = DDP(net)
if dist.get_rank() == 0:
    model.module.load_state_dict(torch.load("last.pt"))
```

## After

```python
net.load_state_dict(torch.load("last.pt", map_location="cpu"))
model = DDP(net)
```
"""

SEVERITY = "warning"
NEXT = ("load the checkpoint on every rank, the model's and the optimizer's part",)
