"""A DataLoader worker was killed, and its rank failed

## What it is

A worker process of the DataLoader died of a signal. The rank noticed and raised "DataLoader worker (pid …) is
killed by signal" or "exited unexpectedly"; the other ranks lost their connection afterwards.

## Why it happens

Usually memory: SIGKILL is the out-of-memory killer, SIGBUS is a full `/dev/shm` (RW406). SIGSEGV is a fault in
the code that decodes or augments samples.

## How to fix it

For SIGKILL: fewer workers, smaller `prefetch_factor`, less data held by the `Dataset` object (every worker has
it, and Python's reference counts turn shared pages into copies). For SIGSEGV: run with `num_workers=0` to see
which sample does it.

## Before

```python
self.samples = [json.loads(line) for line in open(path)]      # millions of Python objects, copied in each worker
loader = DataLoader(data, num_workers=32, prefetch_factor=8)
```

## After

```python
self.samples = np.memmap(path, dtype=np.int32, mode="r")      # one copy, mapped
loader = DataLoader(data, num_workers=8, prefetch_factor=2)
```
"""

SEVERITY = "error"
NEXT = ("SIGKILL: less memory per worker; SIGBUS: more /dev/shm; SIGSEGV: try num_workers=0 to find the sample",)
