"""A rank is waiting for a DataLoader worker that is gone

## What it is

A worker process of the rank's DataLoader has ended, and the rank is still waiting for the batch it owed.

## Why it happens

The worker was killed (memory), crashed in native code, or ended itself (`sys.exit`, `os._exit` in the data
code). With a custom sampler thread or a queue of your own nobody notices; the DataLoader itself checks every
few seconds and raises.

## How to fix it

Find out why the worker ended: its exit code or signal is in the finding. Less memory per worker (`num_workers`,
`prefetch_factor`), no `os._exit` in data code; run once with `num_workers=0` to see the exception itself.

## Before

```python
def __getitem__(self, index):
    if index in self.broken:
        os._exit(1)                        # the batch never comes
    return self.items[index]
```

## After

```python
def __getitem__(self, index):
    if index in self.broken:
        raise ValueError(f"sample {index} is broken")      # reaches the rank with its traceback
    return self.items[index]
```
"""

SEVERITY = "warning"
NEXT = ("find out why the worker ended (exit code and memory are in the finding); try num_workers=0",)
