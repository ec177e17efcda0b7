"""A collective gives a wrong result

## What it is

The ranks reduced, gathered or broadcast known numbers, and something else came out. Whatever is trained on this is
wrong, without any error.

## Why it happens

Different versions of torch or NCCL on the hosts, a broken network card or memory module, an experimental network
plugin or algorithm that was switched on by a variable.

## How to fix it

Make versions and variables the same first. If it stays, leave hosts out one by one until it is right: the last one
left out is the broken one.

## Before

```console
$ NCCL_NET_PLUGIN=experimental torchrun …
```

## After

```console
$ env -u NCCL_NET_PLUGIN torchrun …
```
"""

SEVERITY = "error"
NEXT = ("make versions and variables the same on all hosts, then leave out one host after the other until the result is right",)
