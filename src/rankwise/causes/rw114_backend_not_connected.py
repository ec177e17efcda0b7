"""All ranks met, but the backend cannot connect them

## What it is

Every rank reached the store, so address and port are right. The backend then opens its own connections between
the ranks, on other ports and perhaps another interface, and these do not come about.

## Why it happens

Each rank offers the address its host name resolves to. On many Linux systems that is `127.0.1.1`, or the
address of a Docker bridge or VPN that the others cannot reach. Or a firewall lets only `MASTER_PORT` through:
the backends use further ports that the system picks.

## How to fix it

Name the interface that leads to the other nodes for both backends, and allow all TCP traffic between the job's
hosts.

## Before

```console
$ getent hosts $(hostname)
127.0.1.1       node-b              # this is what node-b tells the others
```

## After

```console
$ export GLOO_SOCKET_IFNAME=ens5 NCCL_SOCKET_IFNAME=ens5
$ rankwise run --nnodes 2 --rdzv-backend c10d --rdzv-endpoint node-a:29500 train.py
```
"""

SEVERITY = "error"
NEXT = (
    "set GLOO_SOCKET_IFNAME / NCCL_SOCKET_IFNAME to the interface that reaches the other nodes",
    "open all TCP ports between the nodes of the job",
)
