"""Ranks use different init methods

## What it is

`init_process_group` can meet the others through the environment (`env://`), an address (`tcp://…`), a file
(`file://…`) or a store object. Here the ranks chose different ones, so they never meet.

## Why it happens

The method depends on something that differs between ranks: a flag given on one node only, a check such as "is
this Slurm?" that answers differently, or a file path that means another file on every node.

## How to fix it

Use one method for all ranks. `env://` is the default and fits every launcher.

## Before

```python
method = "tcp://10.0.0.1:29500" if args.tcp else f"file:///tmp/rdzv-{job_id}"
dist.init_process_group("gloo", init_method=method, rank=rank, world_size=world_size)
```

## After

```python
dist.init_process_group("gloo", init_method="env://", rank=rank, world_size=world_size)
```
"""

SEVERITY = "error"
NEXT = ("use the same init_method, with the same address or path, on every rank",)
