"""A rank skipped a collective that the others are waiting in

## What it is

Every rank of a process group must call the same collectives in the same order. Here one rank left one out
(a `continue`, an early `return`, an `except` block, a condition that is true on some ranks only), so the
others wait for it. DDP's gradient all-reduce counts: a skipped `backward()` is a skipped collective.

## Why it happens

A decision was taken from data that differs between ranks: a non-finite loss, a caught out-of-memory error,
an empty batch, a file that exists on one host only. Until the counts differ by a whole epoch the job may even
run on, adding gradients of different steps to each other.

## How to fix it

Take the decision together: reduce the flag, then let every rank follow it.

## Before

```python
if not torch.isfinite(loss):
    continue                      # this rank now does one all-reduce less
loss.backward()
```

## After

```python
bad = torch.tensor([0.0 if torch.isfinite(loss) else 1.0], device=loss.device)
dist.all_reduce(bad, op=dist.ReduceOp.MAX)   # every rank learns it
if bad.item():
    continue                      # ... and all of them skip
loss.backward()
```
"""

SEVERITY = "error"
NEXT = ("take the decision on all ranks together: all_reduce or broadcast the flag, then branch",)
