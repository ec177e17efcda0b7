"""The file of a file:// rendezvous is left from an earlier run

## What it is

`file://` rendezvous keeps its keys in a file. If that file already holds the keys of an earlier run, the new
ranks read old addresses and old counters, and wait for peers that no longer exist.

## Why it happens

The file is removed when the last process of a run leaves cleanly. After a crash or a kill it stays, and the
next run with the same path meets the remains.

## How to fix it

Use a path that is new in every run and the same on all ranks, for example with the job's id in it; or remove
the file in the launcher before the first rank starts, never in the ranks themselves.

## Before

```python
dist.init_process_group("gloo", init_method="file:///scratch/rdzv", rank=rank, world_size=4)
```

## After

```python
path = f"/scratch/rdzv-{os.environ['JOB_ID']}"        # the launcher sets JOB_ID once per run
dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=4)
```
"""

SEVERITY = "error"
NEXT = ("remove the old file before the ranks start, or use a new path for every run",)
