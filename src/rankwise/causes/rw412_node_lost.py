"""A node is gone, with every rank on it

## What it is

The watchers of a job's nodes tell each other every second that they are there. One of them stopped: its machine is
down or frozen, its network is cut, or rankwise itself was killed there, which ends the ranks it had started. No rank
of that node could leave a trace of its own. The other ranks wait for it, or fail with `Connection closed by peer`.

## Why it happens

A machine that crashed, rebooted or was taken back (a spot instance, a drained node); a container or job step that
was ended on one node only; a scheduler's memory or time limit that hit the whole node; a switch, cable or firewall
between the nodes; `kill -9` on the launcher.

## How to fix it

Look at the node itself, not at the training script: is it up, can the others reach it, what does its kernel log say
of that moment, what does the scheduler say of its step? If nodes come and go by design, let torchrun go on without
them (`--nnodes MIN:MAX --max-restarts N`) and save checkpoints often enough.

## Before

```console
$ rankwise run --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint node-a:29400 train.py
```

## After

```console
$ rankwise run --nnodes 1:2 --max-restarts 3 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint node-a:29400 train.py
```
"""

SEVERITY = "error"
NEXT = ("see whether the node is up and can be reached, and ask its scheduler and kernel log: ping, sacct, kubectl get events, dmesg",)
