"""A send has no matching recv, or a recv no matching send

## What it is

A rank waits in `send` or `recv`, and the other side does not make the matching call: same pair of ranks, same
tag, same order. `send` waits too: with gloo it returns only once the other side receives, with NCCL it is
queued and the GPU waits.

## Why it happens

Both neighbours send first and would receive afterwards; the numbers of messages differ; the peer is computed
wrongly at the ends of a ring; the tags differ.

## How to fix it

Post both directions at once with `batch_isend_irecv`, or let even ranks send first and odd ranks receive first.

## Before

```python
dist.send(mine, dst=right)           # every rank sends, nobody receives
dist.recv(theirs, src=left)
```

## After

```python
ops = [dist.P2POp(dist.isend, mine, right), dist.P2POp(dist.irecv, theirs, left)]
for work in dist.batch_isend_irecv(ops):
    work.wait()
```
"""

SEVERITY = "error"
NEXT = ("pair every send with a recv; use batch_isend_irecv where two ranks send to each other",)
