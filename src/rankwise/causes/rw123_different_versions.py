"""Ranks run different versions of torch, NCCL or Python

## What it is

At roll-call one host reported other versions than the rest. Where torch or NCCL differ in more than the last
number the ranks may not understand each other: they hang, crash or add up garbage, and nothing says why.

## Why it happens

One node's environment was updated and the others' were not; a container image with the tag `latest` was pulled on
different days; a user installation in `~/.local` comes before the shared one on one host.

## How to fix it

Use the same image or the same lock file on all hosts, named by a version and not by a tag that moves.

## Before

```console
$ pdsh -w node[1-4] 'python -c "import torch; print(torch.__version__)"'
node1: 2.13.0
node2: 2.13.0
node3: 2.11.0
node4: 2.13.0
```

## After

```console
$ pdsh -w node3 'pip install torch==2.13.0'
```

## When to ignore it

As a warning: a different patch release of Python or of torch is usually harmless.
"""

SEVERITY = "error"
NEXT = ("install the same versions on all hosts",)
