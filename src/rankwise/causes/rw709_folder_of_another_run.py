"""The folder already holds checkpoints

## What it is

A training that did not ask for the checkpoints in its folder is about to write among them. The newest of the folder would then be
of the other run, and the next start would resume from that.

## Why it happens

`resume()` is missing, or the same folder was given to another experiment.

## How to fix it

Call `resume()` before the first step: it restores the newest checkpoint, and does nothing where there is none. For a new
experiment use a new folder.

## Before

```python
checkpoints = train.Checkpoints("runs/a", model=model, optimizer=optimizer)
for x, y in step.over(loader):
    ...
```

## After

```python
checkpoints = train.Checkpoints("runs/a", model=model, optimizer=optimizer)
checkpoints.resume()
for x, y in step.over(loader):
    ...
```
"""

SEVERITY = "error"
NEXT = ("call checkpoints.resume() before the first step, or use another folder",)
