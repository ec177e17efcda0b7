"""Rank 0 failed in work that the others waited for

## What it is

The others waited for rank 0 to finish work of its own (`train.rank_zero`, a checkpoint), and it raised an error. They stop
too, instead of waiting for something that will not come.

## Why it happens

Whatever rank 0's own error says: it is quoted here, and its traceback is in rank 0's log.

## How to fix it

Fix that error. If the job can go on without the result, catch it inside the work and return what says so.

## Before

```python
names = train.rank_zero(lambda: download_labels(url))          # fails without a network
```

## After

```python
def labels() -> list[str] | None:
    try:
        return download_labels(url)
    except OSError:
        return None


names = train.rank_zero(labels)
```
"""

SEVERITY = "error"
NEXT = ("read rank 0's own traceback; it comes first in its log",)
