"""Packets get lost between hosts

## What it is

Some of the small packets sent between two hosts never arrive. TCP sends them again, after 200 ms at the earliest, so
collectives stall now and then, start-up takes long, and timeouts fire without a visible reason.

## Why it happens

A bad cable, transceiver or switch port; an overloaded link or a full queue; a wireless or tunnelled path; a duplex
mismatch; a firewall that limits the rate.

## How to fix it

If all links of one host are affected, look at that host: its cable, its port, its interface's error counters. If a
single pair is, look at the path between the two.

## Before

```console
$ ip -s link show eth0 | grep -A1 RX:
    RX: bytes  packets  errors  dropped
```

## After

```console
$ ip -s link show eth0              # on both ends: errors and dropped stay the same while the check runs
$ rankwise check --only links …     # loss is 0 %
```
"""

SEVERITY = "error"
NEXT = (
    "look at the error counters on both ends: ip -s link, ethtool -S",
    "try another cable or switch port for the host that is named",
)
