"""A rank is waiting for a file lock

## What it is

The rank waits until another process gives up a lock on a file, or until a lock file disappears. The finding
names the file, and the holder where the kernel knows it.

## Why it happens

Several ranks build the same thing: a C++ extension (`torch.utils.cpp_extension` leaves a file called `lock`
behind when it is killed), a dataset cache, a download. Or the holder is itself a rank that waits in a
collective for this one: a deadlock.

## How to fix it

Remove a lock file whose process is gone. Let one rank build and the others wait at a barrier; never hold a file
lock across a collective.

## Before

```python
with FileLock("cache.lock"):
    build_cache()
    dist.barrier()                  # the others wait for the lock, not for the barrier
```

## After

```python
if dist.get_rank() == 0:
    build_cache()
dist.barrier()
```
"""

SEVERITY = "warning"
NEXT = (
    "end the holder of the lock, or remove the lock file if its process is gone",
    "never hold a file lock across a collective",
)
