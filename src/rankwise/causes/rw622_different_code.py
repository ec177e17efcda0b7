"""Hosts run different code

## What it is

The script, or a module it imports, is not the same file on every host. Ranks may then call different collectives, build
different models, or read different data.

## Why it happens

A host has an older checkout, a copy that was not updated, or a local change for debugging.

## How to fix it

Run from one shared folder, one image, or one commit.

## Before

```console
node-a$ git rev-parse --short HEAD
4f2a91c
node-b$ git rev-parse --short HEAD
0be77d1
```

## After

```console
node-b$ git pull && git status --short      # nothing
```
"""

SEVERITY = "error"
NEXT = ("bring the same commit to every host: git status, git rev-parse HEAD",)
