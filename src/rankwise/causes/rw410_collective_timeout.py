"""A collective ran into its timeout

## What it is

torch itself gave up: "Timed out waiting … for recv operation to complete" with gloo, "Watchdog caught
collective operation timeout" with NCCL. The rank that reports the timeout is the one that waited, not the one
that caused it. The finding names the rank that was missing, where it is known.

## Why it happens

One rank took longer than the timeout (30 minutes with gloo, 10 with NCCL by default), or will never come. A
group made with `new_group` without `timeout=` has the default again, whatever the main group has.

## How to fix it

If the missing rank did honest work, raise the timeout of that very group. If it was stuck, look for the cause
there.

## Before

```python
dist.init_process_group("nccl", timeout=timedelta(hours=2))
eval_group = dist.new_group([0, 1])                    # the default again
```

## After

```python
eval_group = dist.new_group([0, 1], timeout=timedelta(hours=2))
```
"""

SEVERITY = "error"
NEXT = ("look at the rank that did not arrive; raise the group's timeout only if its work is honest",)
