"""Hosts have different versions

## What it is

Python, torch, CUDA, NCCL or its network plugin is another version on one host. Ranks of different versions may not
understand each other's messages: they hang, crash, or agree on wrong numbers.

## Why it happens

An environment was updated on some hosts only; one host has another image or module loaded; `PATH` or `PYTHONPATH` leads
elsewhere there; `libnccl-net.so` is on half of the nodes.

## How to fix it

Use one image or one locked environment for all hosts.

## Before

```console
$ pip install torch                        # on each host, on different days
```

## After

```console
$ pip install -r requirements.lock         # the same file on every host
```
"""

SEVERITY = "error"
NEXT = ("install the same versions on every host: one image, or one lock file",)
