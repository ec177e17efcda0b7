"""Hosts are of different kinds

## What it is

Operating system, kernel, processor or GPU differ between hosts. That can work, but every step takes as long as the slowest
host needs, and floating-point results can differ in the last bits.

## Why it happens

A cluster that grew over the years; a queue that hands out whatever is free; a host that was reinstalled.

## How to fix it

Ask for one kind of node. Where that is not possible, give the slower ones less work.

## Before

```console
$ sbatch --nodes 4 job.sh
```

## After

```console
$ sbatch --nodes 4 --constraint h100 job.sh
```

## When to ignore it

When the mixture is known and wanted.
"""

SEVERITY = "warning"
NEXT = ("ask the scheduler for one kind of node",)
