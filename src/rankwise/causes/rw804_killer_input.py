"""An input ends the workers that run it

## What it is

Worker processes died while they ran this input: twice by an exit or a crash that is certainly the input's doing, or
more often by a signal that anybody might have sent. It is not tried again. All other tasks went on.

## Why it happens

A bug in native code that this input reaches, a recursion without end, `os._exit` in the model, or so much memory
that the kernel ended the process.

## How to fix it

Take the input the finding describes and run the model on it alone, where the crash can be seen. If memory ran
out, cut the input into smaller ones.

## Before

```python
results = [f.result() for f in futures]           # one bad input, and everything after it is lost
```

## After

```python
for f in futures:
    try:
        use(f.result())
    except rankwise.Quarantined as error:
        keep_for_later(error.finding)
```
"""

SEVERITY = "error"
NEXT = ("run the model on this input alone (workers=0) and look at the crash",)
