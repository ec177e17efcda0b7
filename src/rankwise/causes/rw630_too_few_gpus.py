"""Fewer usable GPUs than ranks

## What it is

A rank needs a GPU of its own, and this host has fewer that torch can use than ranks are to be started.

## Why it happens

`--nproc-per-node` was written for another kind of node; `CUDA_VISIBLE_DEVICES` hides some; a GPU has fallen off the bus;
torch is a CPU build, or does not fit the driver; the container was started without `--gpus`.

## How to fix it

Compare what the driver sees (`nvidia-smi -L`) with what torch sees (`torch.cuda.device_count()`). Let torchrun count:
`--nproc-per-node gpu`.

## Before

```console
$ torchrun --nproc-per-node 8 train.py      # on a host with 4
```

## After

```console
$ torchrun --nproc-per-node gpu train.py
```
"""

SEVERITY = "error"
NEXT = (
    "compare nvidia-smi -L with python -c 'import torch; print(torch.cuda.device_count())'",
    "use --nproc-per-node gpu",
)
