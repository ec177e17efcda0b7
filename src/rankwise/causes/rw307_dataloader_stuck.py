"""A rank is waiting for its DataLoader, whose worker is stuck

## What it is

The rank waits for the next batch. Its worker processes are alive, but none delivers; the finding shows what a
worker is doing.

## Why it happens

`__getitem__` or `collate_fn` hangs: a network read without a timeout, a broken file, a lock, a database
connection or a random-access file that was opened before the workers were forked and is now shared by all of
them.

## How to fix it

Open files and connections inside the worker (on first use, or in `worker_init_fn`), give reads a timeout, and
set `DataLoader(timeout=…)` so that a stuck worker becomes an error.

## Before

```python
class Data(Dataset):
    def __init__(self, path):
        self.file = h5py.File(path)                # shared by all forked workers
```

## After

```python
class Data(Dataset):
    def __init__(self, path):
        self.path, self.file = path, None

    def __getitem__(self, index):
        if self.file is None:
            self.file = h5py.File(self.path)       # each worker opens its own
        return self.file["x"][index]
```
"""

SEVERITY = "warning"
NEXT = ("look at the worker's line; open files and connections inside the worker; set DataLoader(timeout=...)",)
