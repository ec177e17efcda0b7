"""A rank gets little memory on this host

## What it is

What is free on the host, or what a limit leaves, is little for each of its ranks. torch alone needs about half a
gigabyte per process, before any model or data; a process beyond the limit is killed without a word of its own.

## Why it happens

A container or scheduler limit (cgroup) is set for a smaller job; another job is on the host; more ranks were started
than the host was planned for; a `ulimit -v` in a profile.

## How to fix it

Raise the limit, start fewer ranks on this host, or end what takes the memory.

## Before

```console
$ docker run --memory 1g image torchrun --nproc-per-node 4 train.py
```

## After

```console
$ docker run --memory 32g image torchrun --nproc-per-node 4 train.py
```
"""

SEVERITY = "error"
NEXT = ("raise the limit (container --memory, Slurm --mem, ulimit -v), or start fewer ranks on this host",)
