"""An option or argument is wrong

## What it is

The command line, or an argument of a library call, cannot be understood. Nothing was started.

## Why it happens

A misspelt option, a value of the wrong kind, or an option of `rankwise run` placed behind the script.
Everything behind the script's name belongs to the script; everything behind `--` belongs to the command.

## How to fix it

The finding names the offending word. `rankwise COMMAND --help` lists what is accepted.

## Before

```console
$ rankwise run train.py --stall-after 20      # the script gets --stall-after
```

## After

```console
$ rankwise run --stall-after 20 train.py
```
"""

SEVERITY = "error"
NEXT = ("look at the command's --help",)
