"""A GPU has reported errors

## What it is

The card had memory errors it could not correct, waits to replace a broken row, or its driver wrote errors (Xid) to
the kernel log. Jobs on it crash, hang, or get slow.

## Why it happens

Hardware wears out; a card sits loosely; power or cooling fails; some Xid numbers are errors of a program (13, 31, 43).

## How to fix it

Reset the card when nobody uses it (`nvidia-smi -r`), or reboot. If the errors come back, take it out.

## Before

```console
$ dmesg | grep Xid
NVRM: Xid (PCI:0000:3b:00): 63, Row remapper: row is pending
```

## After

```console
$ nvidia-smi -r -i 2
```
"""

SEVERITY = "error"
NEXT = ("reset the GPU when nobody uses it: nvidia-smi -r -i N; if the errors come back, take the node out",)
