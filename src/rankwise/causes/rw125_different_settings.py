"""NCCL or gloo settings differ between ranks

## What it is

A variable that changes how NCCL or gloo talk (`NCCL_…`, `GLOO_…`, `TORCH_NCCL_…`) has different values on
different ranks. Names of interfaces and log settings are left out: those may differ.

## Why it happens

One host's shell profile or job script sets what the others' do not; a launcher passes on only some variables; a
value was tried on one node and forgotten.

## How to fix it

Set such variables in one place that reaches all ranks: the launcher's environment, the container image, the job
script.

## Before

```console
node1$ NCCL_ALGO=Tree torchrun … train.py
node2$ torchrun … train.py                       # picks Ring: the two do not fit together
```

## After

```console
node1$ NCCL_ALGO=Tree torchrun … train.py
node2$ NCCL_ALGO=Tree torchrun … train.py
```

## When to ignore it

When the hosts differ on purpose, for example in their network cards.
"""

SEVERITY = "warning"
NEXT = ("set the variable to the same value on all ranks, or on none",)
