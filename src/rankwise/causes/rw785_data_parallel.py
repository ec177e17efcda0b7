"""nn.DataParallel is used

## What it is

`nn.DataParallel` runs all GPUs from one process: it copies the model at every forward, gathers on the first GPU and holds
the GIL throughout. PyTorch itself advises against it.

## Why it happens

It is one line, and old tutorials have it.

## How to fix it

Use `DistributedDataParallel`, one process per GPU.

## Before

```python
model = nn.DataParallel(net).cuda()
```

## After

```python
dist.init_process_group("nccl")
model = DDP(net.cuda(), device_ids=[local_rank])
```
"""

SEVERITY = "info"
NEXT = ("use DistributedDataParallel: rankwise run --standalone --nproc-per-node gpu train.py",)
