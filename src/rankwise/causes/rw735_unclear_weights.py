"""Which weights of a checkpoint are meant is not clear

## What it is

The file holds no dictionary of weights at all, or several that fit the model equally well: a student and a teacher, two copies.

## Why it happens

Training scripts put everything they need to go on into one file: several models, averaged copies, the optimizer's moments.

## How to fix it

Name the one you want. `rankwise weights inspect` lists the keys.

## Before

```python
rankwise.load_weights(net, "last.pt")
```

## After

```python
rankwise.load_weights(net, "last.pt", key="student")
```
"""

SEVERITY = "error"
NEXT = ("rankwise weights inspect lists what is there",)
