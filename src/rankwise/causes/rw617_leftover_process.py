"""A process of an earlier job is still there

## What it is

A rank, or a DataLoader worker of one, still runs although its launcher is gone. It holds memory, ports, and perhaps a
GPU.

## Why it happens

torchrun puts its workers into sessions of their own: killing its process group, or the terminal, leaves them alive. A
job was ended with `kill -9`.

## How to fix it

Make sure that nobody waits for it, then end it.

## Before

```console
$ kill -9 LAUNCHER
```

## After

```console
$ kill LAUNCHER                     # torchrun ends its workers when it is asked politely
$ rankwise run … train.py           # ends all of them, whatever happens to it
```

## When to ignore it

When it is a service that sets RANK for reasons of its own.
"""

SEVERITY = "warning"
NEXT = ("make sure that nobody waits for it, then kill it",)
