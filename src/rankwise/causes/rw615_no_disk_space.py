"""No room where checkpoints go

## What it is

The folder for checkpoints cannot be written, or its disk is nearly full. The job would run until the first checkpoint
and fail there, after hours.

## Why it happens

Old checkpoints fill the disk, the folder belongs to somebody else, it is mounted read-only, or it does not exist on
this host.

## How to fix it

Make room, or write somewhere else. Tell `check` where: `--checkpoints DIR`.

## Before

```console
$ df -h runs
Filesystem  Size  Used Avail Use%
/dev/sda1   100G  100G   12M 100%
```

## After

```console
$ rankwise check --checkpoints /data/runs
```
"""

SEVERITY = "error"
NEXT = ("make room there, or write checkpoints somewhere else (check it with --checkpoints DIR)",)
