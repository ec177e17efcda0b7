"""More rows failed than were allowed

## What it is

Rows that fail go to `errors.jsonl` and the job goes on; with `--max-errors` it stops when there are more than that. Without, it stops
when the first rows all fail alike: then the rest would most likely, too, and each row by itself takes long. The exit code is 1 in either
case, and when a job is done and no row has worked.

## Why it happens

A few bad rows are normal in large inputs. Many mean that the input is not what the model expects: another column, another shape,
another dtype.

## How to fix it

The finding shows some of them. What is done is kept: the same command with a higher limit goes on, `--restart` begins again. If the first
rows are bad and the others are not, give a `--max-errors` that is large enough.

## Before

```console
$ rankwise predict … --input data.parquet --max-errors 10
```

## After

```console
$ rankwise predict … --input data.parquet --columns pixels --max-errors 10 --restart
```
"""

SEVERITY = "error"
NEXT = ("look at the rows it names",)
