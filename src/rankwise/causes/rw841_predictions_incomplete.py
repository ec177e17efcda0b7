"""The ranks' predictions do not make up the dataset

## What it is

`gather_predictions` got outputs that do not cover every row of the dataset once, or that differ in shape between ranks.

## Why it happens

A loader with `drop_last=True` leaves out rows, the indices are those of another dataset, or the outputs are not in the order of the
indices.

## How to fix it

Give the dataset's length and, where the sampler shuffles, the indices each rank saw.

## Before

```console
$ python -c "outputs = run(loader)                    # drop_last=True"
```

## After

```console
$ python -c "rankwise.gather_predictions(outputs, len(dataset), indices=seen)"
```
"""

SEVERITY = "error"
NEXT = ("evaluate with drop_last=False, and give indices= where the sampler shuffles",)
