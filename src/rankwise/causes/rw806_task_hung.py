"""A task ran past its limit

## What it is

A run of the model took longer than `limit_s`. Its worker's stack was read, the worker was ended and replaced, and
the task failed with that stack. Other tasks the worker had been given ran elsewhere.

## Why it happens

A loop that does not end for this input, a lock or a download inside `forward`, a model that is just slow, or a
machine that is overloaded.

## How to fix it

Look at the line the stack shows. If a run may take that long, raise `limit_s`; `None` turns the limit off.

## Before

```python
Model("my_models:build")                          # limit_s is 300
```

## After

```python
Model("my_models:build", limit_s=1800)            # half an hour is usual for this one
```
"""

SEVERITY = "error"
NEXT = ("look at the line the stack shows, or raise the model's limit_s",)
