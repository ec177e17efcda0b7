"""Ranks disagree about the world size

## What it is

One rank was told another `WORLD_SIZE` than the rest. The ranks with the smaller number may believe that the
group is complete and go on; the others wait for ranks that nobody will start.

## Why it happens

The number of processes per node differs between nodes, `--nnodes` differs, a value is hard-coded in the script,
or one node still runs the configuration of an earlier job.

## How to fix it

Start every node with the same `--nnodes` and `--nproc-per-node`, and read the world size from the environment.

## Before

```python
dist.init_process_group("gloo", rank=rank, world_size=torch.cuda.device_count())   # local, not global
```

## After

```python
dist.init_process_group("gloo", rank=rank, world_size=int(os.environ["WORLD_SIZE"]))
```
"""

SEVERITY = "error"
NEXT = ("give every rank the same world size",)
