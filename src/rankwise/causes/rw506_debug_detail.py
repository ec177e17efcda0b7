"""TORCH_DISTRIBUTED_DEBUG=DETAIL is set

## What it is

With `DETAIL`, torch puts a checking layer around every process group. On torch 2.13 with gloo this layer can
crash a healthy DDP job with SIGSEGV, and in any version it adds a barrier and a gather to every collective.

## Why it happens

It was set to debug a hang, often in a shell profile or a job template, and forgotten.

## How to fix it

Unset it. What it would report, mismatched operations, shapes and orders, `rankwise run` finds without it.
`INFO` is harmless: it names unused parameters and does not wrap the group.

## Before

```console
$ export TORCH_DISTRIBUTED_DEBUG=DETAIL
```

## After

```console
$ unset TORCH_DISTRIBUTED_DEBUG
```
"""

SEVERITY = "info"
NEXT = ("unset TORCH_DISTRIBUTED_DEBUG",)
