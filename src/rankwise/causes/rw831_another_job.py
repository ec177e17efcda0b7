"""The unfinished job for this output is another one

## What it is

`rankwise predict` keeps what is done beside the output until the output is written. What is there was made from another input, other
weights or by another command, and going on would mix the two.

## Why it happens

The input or the weights were changed or written again since, or the same output was given to two jobs.

## How to fix it

Give the command again that was interrupted, or another output. `--restart` forgets what was done and begins again.

## Before

```console
$ rankwise predict … --weights epoch-3.pt --output out.parquet      # interrupted
$ rankwise predict … --weights epoch-4.pt --output out.parquet
```

## After

```console
$ rankwise predict … --weights epoch-4.pt --output out.parquet --restart
```
"""

SEVERITY = "error"
NEXT = ("give the interrupted command again, or --restart",)
