"""A process may open few files or lock little memory

## What it is

Each rank holds a connection to every other rank and a file descriptor for each shared tensor. RDMA cards need memory
that stays where it is. Beyond the limit torch fails with "Too many open files", NCCL with an error of its own.

## Why it happens

The default of 1,024 files is for interactive use. Services and schedulers hand their own limits on to the jobs they
start.

## How to fix it

Raise the limits where the job is started: in the job script, in `limits.conf`, or in the container's options.

## Before

```console
$ ulimit -n
1024
```

## After

```console
$ ulimit -n 65536 && ulimit -l unlimited
$ torchrun train.py
```
"""

SEVERITY = "error"
NEXT = ("raise the limit before the job is started: ulimit -n 65536, ulimit -l unlimited",)
