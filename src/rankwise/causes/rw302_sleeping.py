"""A rank is sleeping while the others wait

## What it is

The rank is in `time.sleep` (or another plain wait without a partner), while the other ranks wait in a
collective.

## Why it happens

Waiting for rank 0's download by sleeping, a retry with growing pauses, throttling towards a service, a pause
from a debugging session that was left in.

## How to fix it

Wait for the event itself: `dist.barrier()` where another rank does the work, a deadline where an outside
service does.

## Before

```python
if rank != 0:
    time.sleep(600)                # rank 0 should have finished by then
```

## After

```python
if rank == 0:
    prepare()
dist.barrier()
```

## When to ignore it

When the pause is known and shorter than the group's timeout.
"""

SEVERITY = "warning"
NEXT = ("replace the sleep by a wait for the event itself, such as dist.barrier()",)
