"""The model is not the same on all ranks

## What it is

DDP was given models whose parameters differ in number, shape or type. Its constructor compares them; the ranks
that notice raise "DDP expects same model across all ranks" or "appears not to match sizes of the same param",
and the rest lose their connection.

## Why it happens

The model is built from something local: the vocabulary or the number of classes found in the rank's own shard,
another version of the code or of a library on one node, a configuration file that differs, layers chosen at
random.

## How to fix it

Compute such numbers on one rank and broadcast them, or keep them in the configuration. Different initial
*values* are no problem: DDP broadcasts rank 0's.

## Before

```python
num_classes = len(set(label for _, label in my_shard))       # another number on every rank
model = DistributedDataParallel(Net(num_classes))
```

## After

```python
found = [None] * dist.get_world_size()
dist.all_gather_object(found, {label for _, label in my_shard})
model = DistributedDataParallel(Net(len(set().union(*found))))
```
"""

SEVERITY = "error"
NEXT = ("build the model from the same numbers and the same code on every rank",)
