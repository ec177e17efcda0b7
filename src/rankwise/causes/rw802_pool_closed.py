"""The pool is closed

## What it is

A task was submitted after `close()`, or was still waiting when the pool was closed with `cancel=True` or when
its time-out passed. It did not run.

## Why it happens

The `with` block ended, another thread closed the pool, or an exception in the block cancelled what waited.

## How to fix it

Take the results inside the `with` block. Close the pool where nobody can submit any more.

## Before

```python
with rankwise.Pool(models) as pool:
    futures = [pool.submit("mlp", x) for x in xs]
late = pool.submit("mlp", x)                    # the pool is closed here
```

## After

```python
with rankwise.Pool(models) as pool:
    results = list(pool.map("mlp", xs))
```
"""

SEVERITY = "error"
NEXT = ("submit before close(), and take results inside the with block",)
