"""A rank has been somewhere else for long, while the others wait

## What it is

The rank is alive and not in a collective. It has not moved since the others began to wait, and what it is doing
fits none of the more exact causes. The finding shows its line.

## Why it happens

A system call that does not return (a network file system, a device, a driver), a call into a library that waits
for something, a long computation in one call.

## How to fix it

Look at the line. If it can take this long, raise the group's timeout; if not, give the call a timeout, or keep
it away from the ranks.

## Before

```python
torch.save(state, "/nfs/checkpoints/last.pt")          # the file server does not answer
dist.barrier()
```

## After

```python
torch.save(state, "/local/last.pt")                    # local first
upload_in_background("/local/last.pt")
dist.barrier()
```
"""

SEVERITY = "warning"
NEXT = ("look at the line where the rank is, and at what it calls there",)
