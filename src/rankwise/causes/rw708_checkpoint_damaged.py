"""A checkpoint's bytes are not those that were written

## What it is

Each checkpoint has a manifest with the size and the SHA-256 of its files. This one does not match. An older one that does is
used instead; if there is none, nothing is loaded, rather than beginning again silently.

## Why it happens

A file was copied incompletely, edited, or the disk lost or changed bytes after the checkpoint was finished. A crash while saving
is not the reason: what it leaves never has a checkpoint's name.

## How to fix it

Copy the checkpoint again from where it came. To begin anew on purpose, use another folder or remove the damaged one.

## Before

```console
$ scp node1:runs/a/step-00000120/state.pt runs/a/step-00000120/     # interrupted
```

## After

```console
$ rsync --archive node1:runs/a/step-00000120 runs/a/
```
"""

SEVERITY = "error"
NEXT = ("copy the checkpoint again, or remove it to go on from an older one",)
