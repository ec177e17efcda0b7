"""Ranks have different numbers of batches

## What it is

One rank ran out of data and left the training loop, while the others are still in it. Their next gradient
all-reduce waits for a rank that has no batch left; when that rank exits, they fail with "Connection closed by
peer".

## Why it happens

The data was sharded by hand (`files[rank::world_size]`, an `IterableDataset`, filtered samples), so that shards
are not equally long. Different batch *sizes* are no problem; different *numbers* of batches are.

## How to fix it

`DistributedSampler` gives every rank the same number of samples. For other sources, agree on the smallest
number of batches, or wrap the loop in `Join`, which lets finished ranks shadow the collectives of the others.

## Before

```python
for batch in my_shard_loader:                 # 98 batches here, 97 there
    train_step(model, batch)
```

## After

```python
steps = torch.tensor([len(my_shard_loader)])
dist.all_reduce(steps, op=dist.ReduceOp.MIN)
for batch in itertools.islice(my_shard_loader, int(steps)):
    train_step(model, batch)
```
"""

SEVERITY = "error"
NEXT = ("use DistributedSampler, cut to the smallest number of batches, or wrap the loop in torch.distributed.algorithms.Join",)
