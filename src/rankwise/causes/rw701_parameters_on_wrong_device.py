"""A parameter is on another device than DDP works with

## What it is

DDP lays its buckets on the device the parameters are on when it wraps the model. A parameter on another device, on
the meta device, or moved later, is averaged wrongly, or the first backward raises an error that names no parameter.

## Why it happens

Part of the model was created on a fixed device (`device="cuda:0"` in a layer, a tensor made in `forward`), the model
was created on the meta device and never filled, or `.to()` / `.cuda()` was called after wrapping.

## How to fix it

Move the whole model to this rank's own device first, wrap it last, and move nothing afterwards.

## Before

```python
model = DistributedDataParallel(net)
model.to("cuda:1")                       # the buckets stay where they were
```

## After

```python
model = train.wrap(net, device=job.device)
```
"""

SEVERITY = "error"
NEXT = ("move the whole model to this rank's device before wrapping it, and not again afterwards",)
