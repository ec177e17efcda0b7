"""The DDP wrapper is called on some ranks only

## What it is

A forward through `DistributedDataParallel` can communicate: it broadcasts the module's buffers (BatchNorm
statistics) from rank 0, and SyncBatchNorm exchanges statistics in every forward. When only some ranks call it,
they wait for the others, or the collectives of all ranks are out of step from there on.

## Why it happens

Evaluation, sampling or logging on rank 0 uses the wrapped model. Under `no_grad` the buffers are broadcast in
the first forward after a training step only, so the mistake often shows as a hang at the next barrier, far from
its cause.

## How to fix it

Use the plain model, `model.module`, for anything that not all ranks do.

## Before

```python
if rank == 0:
    model.eval()
    with torch.no_grad():
        score = evaluate(model)            # the DDP wrapper
```

## After

```python
if rank == 0:
    model.eval()
    with torch.no_grad():
        score = evaluate(model.module)     # no communication
model.train()
dist.barrier()
```
"""

SEVERITY = "error"
NEXT = ("use model.module for forwards that only some ranks run",)
