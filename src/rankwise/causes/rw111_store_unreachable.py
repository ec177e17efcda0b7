"""Nothing answers at the rendezvous address

## What it is

The address resolves, but no store can be reached there: the connection is refused, or packets go nowhere.

## Why it happens

Rank 0 is not running (yet) on the host that `MASTER_ADDR` names; the address belongs to another node; a
firewall, a security group or a Kubernetes network policy drops the port; inside a container the port is not
published.

## How to fix it

From the rank that cannot connect, try `nc -vz MASTER_ADDR MASTER_PORT` while rank 0 runs. "Refused" means that
nobody listens there: check where rank 0 is. A silent wait means a firewall: open the port between the nodes.

## Before

```console
$ MASTER_ADDR=10.0.0.2 …       # rank 0 runs on 10.0.0.1
```

## After

```console
$ MASTER_ADDR=10.0.0.1 …       # the host that runs rank 0
$ nc -vz 10.0.0.1 29500
Connection to 10.0.0.1 29500 port [tcp/*] succeeded!
```
"""

SEVERITY = "error"
NEXT = ("check that rank 0 runs at that address, and that no firewall drops the port: nc -vz HOST PORT",)
