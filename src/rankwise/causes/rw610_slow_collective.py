"""Collectives are much slower than the links

## What it is

Each link alone moves data well, but an all-reduce over all hosts moves a small fraction of it, or does not come to an
end in time.

## Why it happens

The backend uses another interface than the one that was measured; too few cores are left for it; several hosts share
one uplink that is full when all of them send; a variable forces a slow algorithm or transport.

## How to fix it

Name the interface for the backends. Compare with two hosts only: if those are quick, something that all hosts share
is the bottleneck.

## Before

```console
$ export NCCL_IB_DISABLE=1                 # left over from a debugging session
```

## After

```console
$ unset NCCL_IB_DISABLE
$ export GLOO_SOCKET_IFNAME=eth1 NCCL_SOCKET_IFNAME==eth1
```
"""

SEVERITY = "warning"
NEXT = ("name the interface for the backends, and compare with two hosts only",)
