"""The environment does not say which rank this is or where the others meet

## What it is

A rank needs four numbers and names: its rank, the world size, and the address and port where all ranks meet. One
of them is missing from this process's environment, or cannot be read.

## Why it happens

The script was started with plain `python` while `WORLD_SIZE` is left over from another shell; a launcher of your
own sets only some of the variables; `sudo`, `ssh` or a container dropped them on the way.

## How to fix it

Let a launcher set all of them: `torchrun`, `rankwise run`, `srun`, `mpirun`, or `rankwise.spawn` from Python. To
run a single process, unset `RANK` and `WORLD_SIZE`.

## Before

```console
$ WORLD_SIZE=2 RANK=0 python train.py            # nobody said where to meet
```

## After

```console
$ torchrun --nproc-per-node 2 train.py
```
"""

SEVERITY = "error"
NEXT = ("start the script with torchrun, rankwise run, srun or mpirun, or unset RANK and WORLD_SIZE for a single process",)
