"""A file could not be written

## What it is

The output of a command could not be written. What was there before is unchanged, and no half of a file is left.

## Why it happens

The disk is full, the folder is not there or may not be written to, or a quota is used up.

## How to fix it

Make room or choose another place, then give the same command again.

## Before

```console
$ rankwise weights convert last.pt /full-disk/last.safetensors
```

## After

```console
$ df -h .
$ rankwise weights convert last.pt last.safetensors
```
"""

SEVERITY = "error"
NEXT = ("make room, or write to another folder",)
