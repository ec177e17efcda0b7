"""A rank crashed in native code

## What it is

The process died of SIGSEGV, SIGABRT, SIGBUS, SIGFPE or SIGILL: a fault in compiled code, or an `abort()` there.
The Python line that was running is in the finding.

## Why it happens

An extension built for another version of torch or CUDA, an index out of range in a custom kernel, a driver or
library mismatch, a broken file given to a decoder, recursion that exhausts the stack, a C++ exception that
nobody caught.

## How to fix it

Look at the Python line: which extension does it enter? Rebuild that for the installed torch, try the step alone
and on the CPU, and check its inputs. For device errors run once with `CUDA_LAUNCH_BLOCKING=1`, so that the line
is the right one.

## Before

```python
out = my_ops.gather(table, index)               # index is one too large on this rank's last batch
```

## After

```python
if index.max() >= len(table):
    raise IndexError(f"index {int(index.max())} in a table of {len(table)}")
out = my_ops.gather(table, index)
```
"""

SEVERITY = "error"
NEXT = ("look at the Python line of the crash: rebuild or update the library it calls, and check its inputs",)
