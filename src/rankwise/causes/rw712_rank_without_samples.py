"""A rank has no sample at all

## What it is

The other ranks have batches, this one has none, not even one to take part with. DDP's collectives need every rank, so
the others would wait.

## Why it happens

A dataset that shards itself has fewer shards than there are ranks, or a rank's files are empty.

## How to fix it

Have at least as many shards as ranks, or let the loader shard: it gives every rank something to take part with.

## Before

```python
shards = all_shards[rank::world_size]                 # 3 shards, 4 ranks
for batch in step.over(DataLoader(Shards(shards), batch_size=32)):
    ...
```

## After

```python
loader = train.Loader(Shards(all_shards), batch_size=32)
for batch in step.over(loader):
    ...
```
"""

SEVERITY = "error"
NEXT = ("have at least as many shards as ranks, or give train.Loader the whole dataset",)
