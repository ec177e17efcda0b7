"""Ranks are waiting for one that is busy

## What it is

The job is not stuck: one rank is working (its frames, CPU time or files move), and the others wait for it in a
collective.

## Why it happens

Evaluation, saving or logging on rank 0; uneven data; compiling on one rank.

## How to fix it

Nothing, as long as it takes less than the group's timeout (30 minutes with gloo, 10 with NCCL by default).
Otherwise raise that, or share the work among the ranks.

## Before

```python
dist.init_process_group("nccl")                                    # 10 minutes
if dist.get_rank() == 0:
    evaluate(model.module)                                         # 15 minutes
dist.barrier()
```

## After

```python
dist.init_process_group("nccl", timeout=timedelta(hours=1))
```

## When to ignore it

When you know that the named place takes this long.
"""

SEVERITY = "info"
NEXT = ("wait; if it can exceed the group's timeout, raise that",)
