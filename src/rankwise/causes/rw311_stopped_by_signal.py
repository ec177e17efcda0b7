"""A rank is stopped by a signal

## What it is

The process is in the stopped state (`T` in `ps`): it received SIGSTOP, SIGTSTP, SIGTTIN or SIGTTOU, or a
debugger holds it. It uses no CPU and cannot notice anything.

## Why it happens

Ctrl-Z in its terminal, a background process that reads from the terminal (SIGTTIN), a scheduler that suspends
jobs, a debugger or `strace` that is still attached, `kill -STOP`.

## How to fix it

Continue it with `kill -CONT PID`, or detach the debugger. Redirect standard input from `/dev/null` for jobs in
the background.

## Before

```console
$ torchrun --nproc-per-node 2 train.py &       # reads the terminal: stopped by SIGTTIN
```

## After

```console
$ torchrun --nproc-per-node 2 train.py < /dev/null &
```
"""

SEVERITY = "warning"
NEXT = ("kill -CONT PID, or detach the debugger that holds it",)
