"""A rank hangs while it exits

## What it is

The script of this rank has come to its end, but its process does not end: something that runs at exit waits for ever.
The other ranks have finished, or wait for the launcher. No collective is involved any more.

## Why it happens

At exit Python joins every thread that is not a daemon, then runs the `atexit` handlers. A handler that calls
`queue.join()`, `thread.join()` or `pool.close(); pool.join()` waits for a worker that may have died earlier; a
non-daemon thread that waits for more work never ends; a logger or tracker may wait for a server.

## How to fix it

Give the wait at exit a timeout, and let the thread that drains the queue survive its errors (or mark the queue's
items as done in a `finally`). Close writers before the end of the script, where an error is seen.

## Before

```python
atexit.register(writer.close)           # close() waits in queue.join()

def drain():
    while True:
        event = events.get()
        file.write(json.dumps(event))   # an exception here ends the thread
        events.task_done()
```

## After

```python
def drain():
    while True:
        event = events.get()
        try:
            file.write(json.dumps(event))
        except Exception:
            log.exception("event dropped")
        finally:
            events.task_done()
```
"""

SEVERITY = "warning"
NEXT = ("give the wait at the named line a timeout, and find out why what it waits for does not end",)
