"""GPUs cannot read each other's memory

## What it is

Two GPUs of one host have no direct way to each other. NCCL then copies through the host's memory, several times slower.

## Why it happens

They sit below different processors; the platform's IOMMU or ACS forbids it; a virtual machine does not pass it on; the
cards do not offer it.

## How to fix it

See how they are connected (`nvidia-smi topo -m`). In a virtual machine ask for a type with NVLink; on bare metal switch
ACS off for the PCIe switches.

## Before

```console
$ nvidia-smi topo -m          # SYS between the two
```

## After

```console
$ CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc-per-node 2 train.py     # a pair that has it
```

## When to ignore it

On cards and machines that never offered it.
"""

SEVERITY = "warning"
NEXT = ("see how they are connected: nvidia-smi topo -m",)
