"""Two ranks use the same GPU

## What it is

Two ranks of the job found themselves on one and the same card. NCCL refuses that with "Duplicate GPU detected",
minutes later and on some ranks only; with other backends the two share the card's memory and time.

## Why it happens

`LOCAL_RANK` is missing or the same for several ranks, so they all take GPU 0; more ranks than GPUs were started on
a host; `CUDA_VISIBLE_DEVICES` shows several ranks the same card.

## How to fix it

Start as many ranks per host as it has GPUs, and let the launcher set `LOCAL_RANK`. Where each rank is given one
visible card of its own, check that they are different cards.

## Before

```console
$ CUDA_VISIBLE_DEVICES=0 torchrun --nproc-per-node 2 train.py
```

## After

```console
$ CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc-per-node 2 train.py
```
"""

SEVERITY = "error"
NEXT = ("start one rank per GPU, each with its own LOCAL_RANK",)
