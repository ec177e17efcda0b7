"""A host's clock shows another time

## What it is

The clocks of two hosts differ by more than a second. Log lines of different hosts cannot be put in order, tokens and
certificates look expired, and tools that compare file times take the wrong one for newer.

## Why it happens

No time synchronisation (chrony, ntpd, systemd-timesyncd) on that host, or it cannot reach its server; a virtual
machine that was suspended.

## How to fix it

Start time synchronisation and let it step the clock once.

## Before

```console
$ timedatectl | grep synchronized
System clock synchronized: no
```

## After

```console
$ chronyc makestep
$ timedatectl | grep synchronized
System clock synchronized: yes
```
"""

SEVERITY = "error"
NEXT = ("start time synchronisation on that host: timedatectl set-ntp true, chronyc makestep",)
