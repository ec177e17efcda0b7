"""DDP reduces the gradients in very small buckets

## What it is

DDP puts gradients together into buckets and makes one all-reduce for each. Here the buckets are so small that there are
many all-reduces in every step, and each costs at least one trip over the network, however little it carries.

## Why it happens

`bucket_cap_mb` was set far below its default of 25.

## How to fix it

Leave `bucket_cap_mb` at its default, or raise it; more than 25 can be faster over a network with high latency.

## Before

```python
model = DDP(model, bucket_cap_mb=0.1)
```

## After

```python
model = DDP(model)
```
"""

SEVERITY = "info"
NEXT = ("leave bucket_cap_mb at its default of 25",)
