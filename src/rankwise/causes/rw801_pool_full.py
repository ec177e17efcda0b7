"""The pool has no room for one more task

## What it is

`submit` was refused: as many tasks as `max_queue` allows wait for this model already, or the lane has no room for
the input. Nothing was queued; the tasks before it are not affected.

## Why it happens

Tasks come faster than the workers finish them. A queue without a limit would hide that until memory runs out,
and every answer would come late. Or the caller holds what lies on the lane: arrays of `pool.empty`, and results that
stand on their input's memory. The finding says how much of it each of them takes.

## How to fix it

Slow the caller down: `pool.map` waits by itself. Where requests come from outside, pass the refusal on (HTTP 429 or
503). If the peak is short, a larger `max_queue` carries it; if it is not, more workers or `max_batch` do. Of what is
to be kept for long, keep copies, or give the pool a larger `lane_bytes`.

## Before

```python
futures = [pool.submit("mlp", x) for x in millions_of_rows]
```

## After

```python
for y in pool.map("mlp", millions_of_rows):     # only as many under way as the workers can use
    write(y)
```
"""

SEVERITY = "error"
NEXT = ("submit no faster than results come (pool.map does), or raise max_queue",)
