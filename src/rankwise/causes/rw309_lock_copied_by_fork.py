"""A forked process waits for a lock that was held when it was forked

## What it is

`fork` copies the memory of a process but only the thread that called it. A lock that another thread held at
that moment is copied in the locked state, and in the child nobody is left to release it. A DataLoader worker
that meets such a lock never delivers a batch.

## Why it happens

Threads run before the workers are started: a logger, a prefetcher, an experiment tracker, OpenMP or a database
client. Whether the lock is held at the moment of the fork is chance, so it happens once in many runs.

## How to fix it

Start workers by `forkserver` or `spawn`, which begin with a fresh process; or start threads only after the
workers exist.

## Before

```python
threading.Thread(target=log_forever, args=(lock,), daemon=True).start()
loader = DataLoader(data, num_workers=4)                     # forked while the lock may be held
```

## After

```python
loader = DataLoader(data, num_workers=4, multiprocessing_context="forkserver", persistent_workers=True)
```
"""

SEVERITY = "warning"
NEXT = ("start the workers with multiprocessing_context='forkserver' (or 'spawn')",)
