"""A rank of the world never appeared

## What it is

The ranks agreed on a world size, but fewer processes than that ever called `init_process_group`. Those that did
wait for the missing one until the store's timeout (30 minutes by default), and torch's message then counts
clients without naming who is missing.

## Why it happens

`WORLD_SIZE` is larger than the number of processes that were started; one node's command was never run; a
home-made launcher starts at rank 1; or a rank took a path through the script that has no `init_process_group`
in it.

## How to fix it

Let one place compute both numbers: `torchrun` sets `RANK` and `WORLD_SIZE` from what it starts. With a launcher
of your own, derive `WORLD_SIZE` from the list of processes it starts.

## Before

```python
for rank in range(1, 4):                                  # three processes
    env = {**os.environ, "RANK": str(rank), "WORLD_SIZE": "4"}
    subprocess.Popen([sys.executable, "train.py"], env=env)
```

## After

```python
world_size = 4
for rank in range(world_size):
    env = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(world_size)}
    subprocess.Popen([sys.executable, "train.py"], env=env)
```
"""

SEVERITY = "error"
NEXT = ("start the missing rank, or set WORLD_SIZE to the number of processes that are started",)
