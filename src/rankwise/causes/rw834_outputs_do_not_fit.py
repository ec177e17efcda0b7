"""A model's outputs do not fit into one table

## What it is

The outputs of some rows have another shape or kind than those before them, or the file format cannot hold them.

## Why it happens

The length of an output depends on the input (padding to the longest of a batch), a model returns several outputs and `.npy` holds one,
or a dtype has no place in the format.

## How to fix it

Return outputs of one shape, or write a format that holds rows of any length: `.parquet`, `.arrow` or `.jsonl`.

## Before

```console
$ rankwise predict … --output out.npy
```

## After

```console
$ rankwise predict … --output out.parquet
```
"""

SEVERITY = "error"
NEXT = ("write .parquet, .arrow or .jsonl, which hold rows of any length",)
