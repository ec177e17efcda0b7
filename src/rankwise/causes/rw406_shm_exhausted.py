"""Shared memory (/dev/shm) ran out

## What it is

DataLoader workers hand batches to the rank through shared memory. `/dev/shm` is full, so writing there fails
with "No space left on device" or kills the process with SIGBUS ("Bus error").

## Why it happens

Docker gives a container 64 MiB by default. `ranks × num_workers × prefetch_factor` batches are in flight at the
same time. Files left by killed jobs also stay until somebody removes them.

## How to fix it

Give the container more (`--shm-size`, or an `emptyDir` with `medium: Memory` in Kubernetes), or keep fewer
batches in flight. Remove leftovers: `ls /dev/shm`.

## Before

```console
$ docker run --gpus all image torchrun --nproc-per-node 8 train.py
```

## After

```console
$ docker run --gpus all --shm-size 16g image torchrun --nproc-per-node 8 train.py
```
"""

SEVERITY = "error"
NEXT = ("raise --shm-size of the container, or lower num_workers and prefetch_factor",)
