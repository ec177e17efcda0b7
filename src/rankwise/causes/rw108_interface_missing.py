"""The chosen network interface does not exist on this host

## What it is

`GLOO_SOCKET_IFNAME` or `NCCL_SOCKET_IFNAME` names an interface this host does not have, so the backend has no
address to offer to the other ranks.

## Why it happens

The name was copied from another machine (`eth0` here, `ens5` there), or NCCL's syntax was used for gloo. NCCL
takes prefixes (`eth`), exclusions (`^docker,lo`) and exact names (`=eth0`); gloo takes exact names only,
separated by commas.

## How to fix it

List the interfaces with `ip -br addr` and use the one that leads to the other nodes: `ip route get MASTER_IP`
names it. If a single interface does that, leave the variable unset.

## Before

```console
$ export GLOO_SOCKET_IFNAME=^docker,lo       # NCCL's syntax: gloo looks for an interface of that name
```

## After

```console
$ ip route get 10.0.0.1
10.0.0.1 dev ens5 src 10.0.0.7
$ export GLOO_SOCKET_IFNAME=ens5 NCCL_SOCKET_IFNAME=ens5
```
"""

SEVERITY = "error"
NEXT = ("set the variable to an interface of this host (ip -br addr lists them), or unset it",)
