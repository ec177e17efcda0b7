"""Another process is working on the same output

## What it is

Two processes would write the same job. The second one stopped before it changed anything.

## Why it happens

The command was started twice, or an earlier one still runs in the background or on another terminal.

## How to fix it

Wait for the other process, end it, or give another output.

## Before

```console
$ rankwise predict … --output out.parquet &
$ rankwise predict … --output out.parquet
```

## After

```console
$ rankwise predict … --output out.parquet      # one at a time
```
"""

SEVERITY = "error"
NEXT = ("wait for the other process, or give another --output",)
