"""Large packets vanish between hosts

## What it is

Small packets get through, packets of the size the interface allows do not, and nobody says so. Connections open, short
messages are answered, and the first large transfer hangs: the rendezvous works and the first collective does not.

## Why it happens

The path has a smaller MTU than the hosts' interfaces (a tunnel, a VPN, an overlay network, jumbo frames on one side
only), and the ICMP messages that would tell the sender are filtered.

## How to fix it

Set the interface's MTU to what the path carries (the finding says how much), on every host; or let ICMP "fragmentation
needed" through.

## Before

```console
$ ip link show eth0 | grep -o 'mtu [0-9]*'
mtu 9000
$ ping -M do -s 8972 node-b           # silence
```

## After

```console
$ ip link set eth0 mtu 1400           # on every host
$ ping -M do -s 1372 node-b
1380 bytes from node-b: icmp_seq=1 …
```
"""

SEVERITY = "error"
NEXT = (
    "set the MTU of the interface to what the path carries, on every host: ip link set IFACE mtu N",
    "or let ICMP messages through the firewall",
)
