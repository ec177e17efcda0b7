"""One rank looks for the others at another address or port

## What it is

`MASTER_ADDR` or `MASTER_PORT` differs between ranks, so they wait at different doors. Each side sees the other
as missing.

## Why it happens

`MASTER_ADDR` was set to each node's own host name; a port is picked at random in every process; one node has an
old value in its shell profile; the script overwrites the variables the launcher has set.

## How to fix it

Choose address and port once, outside the ranks, and hand the same two values to all of them. `localhost` is
right only when all ranks are on one machine.

## Before

```python
os.environ["MASTER_ADDR"] = socket.gethostname()          # another name on every node
os.environ["MASTER_PORT"] = str(random.randint(20000, 30000))
dist.init_process_group("gloo")
```

## After

```python
# Launched with: torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint node-a:29500 train.py
dist.init_process_group("gloo")
```
"""

SEVERITY = "error"
NEXT = ("give every rank the same MASTER_ADDR and MASTER_PORT",)
