"""A rank is waiting for a lock, a queue or an event inside its own process

## What it is

The rank's main thread waits in `Lock.acquire`, `Queue.get`, `Condition.wait`, `Event.wait` or `Thread.join`.
The finding names the thread that holds the lock, where Python can know it.

## Why it happens

Two threads took two locks in opposite order; a lock was taken twice by the same thread (`Lock` is not
re-entrant, `RLock` is); a thread raised an exception between `acquire` and `release`; a queue's producer has
ended.

## How to fix it

Hold locks with `with`, take several always in the same order, never call a collective while holding one, and
give waits a timeout.

## Before

```python
lock.acquire()
metrics.append(compute(batch))       # raises: the lock is never released
lock.release()
```

## After

```python
with lock:
    metrics.append(compute(batch))
```
"""

SEVERITY = "warning"
NEXT = ("find who holds the lock (the finding names the thread where it is known), and hold locks with a with block",)
