"""This user may not open the rendezvous port

## What it is

The host of rank 0 has to listen on the rendezvous port, and the system does not let this user: the port is below 1024, or
the address is not one of this host.

## Why it happens

Ports below 1024 are for root (or whoever has `CAP_NET_BIND_SERVICE`). A port picked from a list of well-known services
looks fine until somebody else than root starts the job. A security module or a container policy can forbid ports too.

## How to fix it

Use a port from 1024 upwards that the firewall lets through.

## Before

```console
$ torchrun --nnodes 2 --master-addr node-a --master-port 80 train.py
```

## After

```console
$ torchrun --nnodes 2 --master-addr node-a --master-port 29500 train.py
```
"""

SEVERITY = "error"
NEXT = ("use a port from 1024 upwards, the same on every node",)
