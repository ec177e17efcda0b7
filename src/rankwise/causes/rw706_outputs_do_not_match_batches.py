"""The outputs that were collected do not belong to the batches

## What it is

Predictions are put into the dataset's order by the batch they were made for. Here an output has another number of rows than
its batch has samples, a batch has two outputs, or a rank collected fewer than the others.

## Why it happens

A loss or a mean was passed instead of one row for each sample, a batch was left out, `add` stands outside of the loop, or
some ranks left the loop early.

## How to fix it

Add one tensor for each batch the loader yields, with one row for each of its samples, on all ranks.

## Before

```python
for x, y in loader:
    predictions.add(cross_entropy(model(x), y))           # one number for the whole batch
```

## After

```python
for x, y in loader:
    predictions.add(cross_entropy(model(x), y, reduction="none"))
```
"""

SEVERITY = "error"
NEXT = ("add one tensor per batch with one row for each sample, on all ranks",)
