"""A rank is waiting for a process it started

## What it is

The rank waits in `subprocess.run`, `Popen.wait`, `Process.join` or `os.waitpid` for a child that has not ended.
The finding names the child and, if it is a Python process, its line.

## Why it happens

The child itself hangs, waits for input, or is long. Often all ranks start the same helper (a build, a
conversion, a download), and the copies block each other.

## How to fix it

Give the wait a timeout. Let one rank do the work and the others wait at a barrier.

## Before

```python
subprocess.run(["make", "-C", "ops"])                    # on every rank, in the same folder
```

## After

```python
if rank == 0:
    subprocess.run(["make", "-C", "ops"], timeout=600, check=True)
dist.barrier()
```
"""

SEVERITY = "warning"
NEXT = ("look at the child process: what is it waiting for; give the wait a timeout",)
