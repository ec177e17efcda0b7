"""A file or folder that was given cannot be read

## What it is

The path does not exist, may not be read, or does not hold what the command expects.

## Why it happens

`rankwise explain` wants a run folder: the one with `verdict.json` and `evidence/` in it, not its parent and not
the log folder. A folder copied from another machine while the job was still writing may be incomplete.

## How to fix it

Give the folder that `rankwise run` printed at its end, or copy it again once the job has ended.

## Before

```console
$ rankwise explain rankwise-runs
```

## After

```console
$ ls rankwise-runs
20260412-101530-train
$ rankwise explain rankwise-runs/20260412-101530-train
```
"""

SEVERITY = "error"
NEXT = ("check the path, and that the whole run folder was copied",)
