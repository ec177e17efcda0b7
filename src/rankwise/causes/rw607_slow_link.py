"""A link between hosts is slow

## What it is

Bulk data moves far slower between two hosts than a data centre's network does, or than it does between the other
hosts. An all-reduce sends every gradient through the slowest link, so all ranks run at its pace.

## Why it happens

The traffic takes a management network instead of the fast one; an interface fell back to 100 Mbit/s; a cloud
instance's or a container's bandwidth is limited; another job uses the same link.

## How to fix it

Compare with what the interface should do (`ethtool eth0 | grep Speed`), and name the fast interface for the backends.

## Before

```console
$ ethtool eth0 | grep Speed
        Speed: 100Mb/s
```

## After

```console
$ export GLOO_SOCKET_IFNAME=eth1 NCCL_SOCKET_IFNAME==eth1     # the fast one
$ ethtool eth1 | grep Speed
        Speed: 25000Mb/s
```
"""

SEVERITY = "error"
NEXT = (
    "compare with what the interface should do: ethtool IFACE | grep Speed",
    "name the fast interface for the backends, or take the slow host out",
)
