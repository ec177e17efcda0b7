"""A rank was killed by somebody

## What it is

The process received SIGKILL (exit code -9 or 137). Nothing in the process can notice or report that. There is
no proof that the kernel's out-of-memory killer did it, so it came from a program or a person; the finding shows
the memory curve seen until then.

## Why it happens

A scheduler's time or memory limit, a container that was removed, an administrator, a script that runs `kill
-9`, a launcher ending its children; or an out-of-memory kill whose trace in the kernel log cannot be read from
here.

## How to fix it

Ask the scheduler (`sacct -j JOB`, `kubectl describe pod`) and the kernel (`dmesg | grep -i kill`). If memory
was close to the limit, treat it as RW404.

## Before

```console
$ sbatch --time 01:00:00 train.sh          # killed at the limit, in the middle of an epoch
```

## After

```console
$ sbatch --time 04:00:00 --signal B:TERM@120 train.sh      # warned two minutes before
```
"""

SEVERITY = "error"
NEXT = ("ask the scheduler and the kernel log who killed it: sacct, kubectl describe pod, dmesg",)
