"""BatchNorm statistics are different on each rank

## What it is

Each rank keeps running means and variances of its own data, and DDP was told not to send them around
(`broadcast_buffers=False`). In evaluation the ranks are different models.

## Why it happens

`broadcast_buffers=False` without `SyncBatchNorm`, on data that is not the same everywhere.

## How to fix it

Convert to `SyncBatchNorm`, or leave `broadcast_buffers` on: then rank 0's statistics count.

## Before

```python
model = DDP(net, broadcast_buffers=False)
```

## After

```python
net = nn.SyncBatchNorm.convert_sync_batchnorm(net)
model = DDP(net)
```

## When to ignore it

When each rank evaluates on its own domain on purpose.
"""

SEVERITY = "warning"
NEXT = ("convert with nn.SyncBatchNorm.convert_sync_batchnorm(net), or leave broadcast_buffers on",)
