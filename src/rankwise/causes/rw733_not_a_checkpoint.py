"""The file or folder is not a checkpoint

## What it is

Its first bytes belong to none of the formats that hold weights: `torch.save` (both of its formats), safetensors with or
without an index, `torch.distributed.checkpoint` folders, `torch.export` programs.

## Why it happens

The path is one level too high or too low, a Git LFS pointer or an error page was downloaded instead of the file, or the weights
are those of another library.

## How to fix it

The finding says what it looks like. Give the file itself, or the folder that holds `.metadata`, `model.safetensors` or the index.

## Before

```console
$ rankwise weights inspect runs/a
```

## After

```console
$ ls runs/a
epoch-3  epoch-4
$ rankwise weights inspect runs/a/epoch-4
```
"""

SEVERITY = "error"
NEXT = ("check the path",)
