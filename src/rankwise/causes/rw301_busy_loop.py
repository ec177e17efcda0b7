"""A rank is in a loop of its own while the others wait

## What it is

The rank is running Python code, using a CPU, and keeps coming back to the same lines; it has not reached the
collective in which the others wait. Whether the loop will end cannot be seen from outside.

## Why it happens

A `while` loop polls for something that will not come (a file, a flag, a queue that stays empty), a retry has no
limit, a data filter never finds a sample that passes, or the loop is simply long.

## How to fix it

Give the loop an end: a number of tries or a deadline, and an error that says what was missing. Let one rank
poll, and have the others wait at a barrier.

## Before

```python
while not os.path.exists(marker):            # rank 0 wrote it on another node's disk
    pass
```

## After

```python
deadline = time.monotonic() + 600
while not os.path.exists(marker):
    if time.monotonic() > deadline:
        raise TimeoutError(f"no {marker} after 10 minutes")
    time.sleep(1)
```

## When to ignore it

When the named line is honest work of this rank alone, such as preparing data or computing a metric.
"""

SEVERITY = "warning"
NEXT = ("look at the loop at the named line: what would end it, and can that still happen",)
