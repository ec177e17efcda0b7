"""Ranks will share too few or busy cores

## What it is

A host has fewer cores than ranks, is already busy before the job starts, or loses time to its hypervisor. Its ranks
will be the slowest, and all others wait for them at every step.

## Why it happens

Another job runs there; a leftover of an earlier one does; a container has a CPU quota; a virtual machine sits on an
oversold host.

## How to fix it

End what is left over, use another host, or start fewer ranks.

## Before

```console
$ docker run --cpus 2 image torchrun --nproc-per-node 8 train.py
```

## After

```console
$ docker run --cpus 32 image torchrun --nproc-per-node 8 train.py
```

## When to ignore it

When the ranks hardly use the CPU, or when the check itself shares its cores with others.
"""

SEVERITY = "warning"
NEXT = ("end what keeps the cores busy, or start fewer ranks on this host",)
