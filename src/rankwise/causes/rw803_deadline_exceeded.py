"""A task was not done by its deadline

## What it is

The time given as `deadline_s` passed. If the task had not started, it never will; if it was running, its result is
thrown away. The finding says which.

## Why it happens

More work waits than can be done in that time, the model has to be loaded first, or the model itself takes longer.
`pool.stats()` shows the queue, the latency and the seconds a run takes.

## How to fix it

Give more time, or offer less work: fewer requests at once, a second replica, batching. Load models before
requests come with `warmup`.

## Before

```python
pool.submit("large", x, deadline_s=0.01)
```

## After

```python
pool.submit("large", x, deadline_s=2.0)
```
"""

SEVERITY = "error"
NEXT = ("allow more time than the model takes, and look at pool.stats() for the queue",)
