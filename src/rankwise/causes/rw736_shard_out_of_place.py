"""A part of a sharded checkpoint is not beside its index

## What it is

The index of a checkpoint in several files names a file that is not in its own folder: it is missing, or the name leads somewhere
else (`../`, an absolute path). Names that lead elsewhere are never opened: who wrote the index does not choose which of your files
are read.

## Why it happens

Not all files were copied or downloaded, or the index was made by hand or by somebody with bad intentions.

## How to fix it

Copy the whole folder. In the index, keep file names without folders.

## Before

```json
{"weight_map": {"0.weight": "../other/model-00001-of-00002.safetensors"}}
```

## After

```json
{"weight_map": {"0.weight": "model-00001-of-00002.safetensors"}}
```
"""

SEVERITY = "error"
NEXT = ("put all files of the checkpoint into one folder",)
