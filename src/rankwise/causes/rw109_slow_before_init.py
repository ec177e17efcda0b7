"""A rank is still busy before init_process_group

## What it is

The other ranks are waiting in `init_process_group`, and one rank has not reached it yet. It is alive and
working; the finding says where.

## Why it happens

Work that only some ranks do stands before the init: downloading or unpacking data, building a cache, compiling
an extension, importing from a slow network disk.

## How to fix it

Nothing, if it arrives within the init timeout. To be safe, initialise first and let the others wait at a
barrier with a timeout that fits the work, or prepare the data in a step of its own.

## Before

```python
if rank == 0:
    prepare_dataset()                    # the others' init timeout is running
dist.init_process_group("gloo")
```

## After

```python
dist.init_process_group("gloo", timeout=timedelta(hours=2))
if dist.get_rank() == 0:
    prepare_dataset()
dist.barrier()
```

## When to ignore it

When the place it names is known to take this long.
"""

SEVERITY = "warning"
NEXT = ("wait, or move the slow work behind init_process_group and raise its timeout",)
