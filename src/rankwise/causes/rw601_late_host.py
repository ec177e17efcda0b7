"""A host came much later than the others

## What it is

The hosts of the job did not start together. The early ones wait at the rendezvous for the late one; a host that comes
later than the rendezvous timeout finds nobody.

## Why it happens

A slow image pull or environment set-up on one node, a queue that starts nodes one by one, a command that was typed by
hand on the last node.

## How to fix it

Nothing, if the spread is known and below the timeout. Otherwise raise the timeout to more than the spread, or find out
what that host does before it starts.

## Before

```console
$ torchrun --nnodes 4 --rdzv-backend c10d --rdzv-endpoint node-a:29400 train.py
```

## After

```console
$ torchrun --nnodes 4 --rdzv-backend c10d --rdzv-endpoint node-a:29400 --rdzv-conf join_timeout=1800 train.py
```

## When to ignore it

When the check was started by hand on one host after the other.
"""

SEVERITY = "warning"
NEXT = ("find out what that host does before it starts, or allow for it: --rdzv-conf join_timeout=SECONDS",)
