"""A rank raised an exception

## What it is

The script of one rank ended with an exception nobody caught. It was the first by time; the errors of the other
ranks ("Connection closed by peer", "Connection reset by peer", timeouts) are its echoes. The whole traceback is
in the finding and in the rank's log.

## Why it happens

Whatever the exception says: rankwise passes it on unchanged. If it occurred on one rank only, look at what is
special there: its data, its host, its device, a branch for this rank.

## How to fix it

Fix the exception. If a bad sample must not end the whole job, take the decision to skip it on all ranks
together (RW201); catching the exception on one rank alone turns a crash into a hang.

## Before

```python
try:
    loss = model(batch).mean()
    loss.backward()
except RuntimeError:
    continue                        # the other ranks wait in their all-reduce
```

## After

```python
batch = clean(batch)                # make the step safe before the first collective of the step
loss = model(batch).mean()
loss.backward()
```
"""

SEVERITY = "error"
NEXT = ("read the traceback of the named rank; the other ranks' errors are consequences",)
