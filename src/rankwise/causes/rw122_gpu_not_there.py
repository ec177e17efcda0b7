"""A rank is to use a GPU that its host does not show

## What it is

The rank's `LOCAL_RANK` asks for a card beyond those the process can see, or NCCL was asked for where no card can
be seen at all.

## Why it happens

More ranks per host than cards; a `CUDA_VISIBLE_DEVICES` that hides some; a container started without its GPUs; a
driver that is not loaded, or older than this build of torch needs; a CPU build of torch on one host.

## How to fix it

On the named host, `nvidia-smi -L` lists the cards and `python -c "import torch; print(torch.cuda.device_count())"`
says how many of them torch can use.

## Before

```console
$ torchrun --nproc-per-node 8 train.py           # the host has 4 cards
```

## After

```console
$ torchrun --nproc-per-node gpu train.py         # as many ranks as torch sees cards
```
"""

SEVERITY = "error"
NEXT = ("start no more ranks than there are GPUs, and check what the named host shows: nvidia-smi -L",)
