"""The rendezvous port is held by another program

## What it is

Rank 0 (or torchrun's agent) must listen on `MASTER_PORT`, but another process already does. torch reports
`EADDRINUSE`; where the other program happens to answer, the ranks may instead wait for a store that will never
reply.

## Why it happens

29500 is everybody's default: a second job on the same machine, or workers of an earlier job that were never
ended, hold it.

## How to fix it

The finding names the process that holds the port. End it if it is a leftover; otherwise use another port. On
one machine let the launcher pick a free one.

## Before

```console
$ torchrun --nproc-per-node 2 --master-port 29500 train.py
```

## After

```console
$ rankwise run --standalone --nproc-per-node 2 train.py     # picks a free port
```
"""

SEVERITY = "error"
NEXT = ("end the process that holds the port, or use another port (--standalone picks a free one)",)
