"""The ranks do not cut the same data in the same way

## What it is

Each rank works out by itself which samples are its own. That is right only if all of them start from the same numbers:
length of the dataset, batch size, epoch, seed, position. Otherwise samples are given to two ranks or to none, and one
rank has more steps than another.

## Why it happens

Ranks list files at different moments or filter by something random, one rank made its dataset from a cache, one rank has
read ahead in the loader, a seed is drawn from the clock, or a position is restored into another dataset.

## How to fix it

Build the dataset from the same list on all ranks: let one rank list and filter, and send the result to the others.

## Before

```python
files = [f for f in os.listdir(folder) if usable(f)]          # each rank for itself
loader = train.Loader(Files(files), batch_size=32, shuffle=True)
```

## After

```python
files = train.rank_zero(lambda: sorted(f for f in os.listdir(folder) if usable(f)))
loader = train.Loader(Files(files), batch_size=32, shuffle=True)
```
"""

SEVERITY = "error"
NEXT = ("decide on one rank what the dataset holds and send it to the others: train.rank_zero(…)",)
