"""Little room in /dev/shm

## What it is

DataLoader workers hand batches over through files in `/dev/shm`, and NCCL's ranks on one host talk through it. When it
is full, a worker dies with a bus error.

## Why it happens

Docker gives a container 64 MiB unless told otherwise; Kubernetes does the same. Or files of crashed processes were
left there.

## How to fix it

Give the container more, or share the host's.

## Before

```console
$ docker run image torchrun train.py
```

## After

```console
$ docker run --shm-size 16g image torchrun train.py      # or --ipc host
```
"""

SEVERITY = "error"
NEXT = (
    "give the container more: docker run --shm-size 16g (or --ipc host), an emptyDir with medium: Memory in Kubernetes",
    "remove what was left there: ls -la /dev/shm",
)
