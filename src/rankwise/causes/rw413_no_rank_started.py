"""The command ended before any rank had started

## What it is

The command that was to start the ranks failed by itself: no process of the job called `init_process_group` or carried
a rank. The finding shows the exit code and the last that the command said.

## Why it happens

An import that fails at the top of the script, a wrong option, a file that is not there, a launcher that was given the
wrong number of processes. Where the command never meant to start ranks, it just failed.

## How to fix it

Read what the command printed (`logs/launcher.log` in the run folder) and run it once without `rankwise run`: it fails
in the same way.

## Before

```console
$ rankwise run -- python trian.py
```

## After

```console
$ rankwise run -- python train.py
```
"""

SEVERITY = "error"
NEXT = ("read logs/launcher.log in the run folder: the command failed before there was anything distributed about it",)
