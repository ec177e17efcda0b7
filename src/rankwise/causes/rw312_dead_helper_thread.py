"""A rank is waiting for a helper thread that has died

## What it is

The main thread waits for something only a thread of its own could deliver (a queue item, an event), and that
thread has ended with an exception.

## Why it happens

An exception in a thread does not end the process: Python prints it and goes on. A prefetcher, an uploader or a
callback thread that dies leaves its consumer waiting for ever.

## How to fix it

Pass exceptions on: put them into the queue, or use `concurrent.futures`, whose `result()` raises them in the
waiting thread.

## Before

```python
def prefetch():
    for path in paths:
        queue.put(load(path))             # one broken file: the thread ends, the queue stays empty

threading.Thread(target=prefetch, daemon=True).start()
```

## After

```python
pool = ThreadPoolExecutor(max_workers=1)
futures = [pool.submit(load, path) for path in paths]
for future in futures:
    train_step(model, future.result())    # raises load's exception here
```
"""

SEVERITY = "warning"
NEXT = ("fix the exception of the named thread, and hand a thread's errors to the one who waits for it",)
