"""The rendezvous address does not resolve

## What it is

`MASTER_ADDR`, or the host in `--rdzv-endpoint` or `tcp://…`, is a name that this host cannot turn into an IP
address. torch retries until its timeout and logs `gai error` in between.

## Why it happens

A misspelt name; a name only the cluster's own resolver knows, used inside a container; a short name where the
full one is needed; a Kubernetes service that does not exist yet.

## How to fix it

Try the name on the node that failed: `getent hosts NAME`. Use the full name or the IP address of the node that
runs rank 0.

## Before

```console
$ export MASTER_ADDR=node-a
$ getent hosts node-a          # prints nothing: the name is not known here
```

## After

```console
$ export MASTER_ADDR=node-a.cluster.internal
$ getent hosts node-a.cluster.internal
10.0.0.1        node-a.cluster.internal
```
"""

SEVERITY = "error"
NEXT = ("check the name with: getent hosts NAME, or use the IP address of the host of rank 0",)
