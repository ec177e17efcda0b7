"""A message takes long between hosts

## What it is

A small message needs many milliseconds to another host and back. DDP exchanges several messages in each step and for
each bucket, and every one of them waits at least this long.

## Why it happens

The hosts are in different places (regions, buildings, clouds), traffic takes a detour through a VPN or a tunnel, or a
queue on the way is full.

## How to fix it

Use hosts in one place; name the direct interface for the backends. Where the distance is a fact, synchronise less
often: larger batches, gradient accumulation under `no_sync`.

## Before

```python
for x, y in loader:                       # one synchronisation per batch
    loss(model(x), y).backward()
    optimizer.step()
```

## After

```python
for i, (x, y) in enumerate(loader):
    with nullcontext() if i % 8 == 7 else model.no_sync():
        loss(model(x), y).backward()
    if i % 8 == 7:
        optimizer.step()
```

## When to ignore it

When the distance between the hosts is known and the job was planned for it.
"""

SEVERITY = "error"
NEXT = (
    "use hosts in one place, or the interface that connects them directly",
    "where the distance is a fact: synchronise less often",
)
