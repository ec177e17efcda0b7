"""A rank catches the same exception again and again and retries for ever

## What it is

One rank does not come to the collective that the others wait in, because the step before it fails, is caught, and is
tried again, without end. Nothing is printed, and to the others the rank looks busy.

## Why it happens

A loop around the data (or around a download, a decoder, a cache) survives any exception by starting again at the
same place: `except Exception: continue`. A sample that can never be read is then read for ever. The finding names the
exception, where it is raised and how often that has happened.

## How to fix it

Count the attempts, give up after a few, and let all ranks learn of it. Skip the bad sample only if the number of
batches stays the same on every rank.

## Before

```python
while True:
    try:
        batch = next(source)
    except Exception:
        source = restart(position)      # the same sample again, for ever
        continue
```

## After

```python
for attempt in range(3):
    try:
        batch = next(source)
        break
    except OSError:
        source = restart(position)
else:
    raise RuntimeError(f"sample {position} cannot be read")   # every rank's log shows it
```
"""

SEVERITY = "warning"
NEXT = ("fix what raises at the named line, and limit the attempts: after a few, let the exception end the job",)
