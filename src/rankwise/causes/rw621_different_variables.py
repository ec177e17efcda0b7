"""Hosts have different settings in their environment

## What it is

A variable that changes how NCCL, gloo, torch or OpenMP work is set differently on one host. Some of them (protocol,
algorithm, transport) must be the same on all ranks, or the job hangs when the first message is exchanged.

## Why it happens

A line in one host's profile, a leftover `export` of a debugging session, a launcher that passes variables on to some
nodes only.

## How to fix it

Set them in one place, in the job script, for all nodes; remove them from profiles.

## Before

```console
$ export NCCL_PROTO=LL                     # in one host's .bashrc
```

## After

```console
$ srun --export ALL,NCCL_PROTO=Simple torchrun …
```
"""

SEVERITY = "error"
NEXT = ("set the variable to the same value on every host, or unset it everywhere",)
