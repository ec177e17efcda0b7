"""Ranks pass tensors of different types to the same collective

## What it is

The same collective got, for example, float32 on one rank and int32 or bfloat16 on another. Where the types are
equally wide nothing fails: the bytes are added up as if they were of the other type, and the result is garbage.
Where they are not, it ends like a difference in size (RW204).

## Why it happens

A value that is a Python int on one rank and a float on another (`torch.tensor([count])`), autocast or `.half()`
on some ranks only, or a default that applies when a batch is empty.

## How to fix it

Say the type where the tensor is made, on every path.

## Before

```python
total = torch.tensor([loss_sum if batches else 0])       # int64 on the rank without batches, float32 elsewhere
dist.all_reduce(total)
```

## After

```python
total = torch.tensor([loss_sum if batches else 0.0], dtype=torch.float64)
dist.all_reduce(total)
```
"""

SEVERITY = "error"
NEXT = ("give the tensor an explicit dtype on every rank",)
