"""The job was ended from outside

## What it is

A rank, or the launcher, received SIGTERM, SIGINT or SIGHUP that no part of the job had sent.

## Why it happens

Ctrl-C, a closed terminal, `kill`, a scheduler that preempts or reaches the time limit, an eviction in
Kubernetes, a node that is drained.

## How to fix it

If it was not you: ask the scheduler. To survive preemption, save regularly and on SIGTERM, and start the job so
that it resumes. In a terminal, use `tmux`, `nohup` or the scheduler rather than a shell that may close.

## Before

```python
for step, batch in enumerate(loader):
    train_step(model, batch)
```

## After

```python
stopping = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stopping.set())
for step, batch in enumerate(loader):
    train_step(model, batch)
    stop = torch.tensor([float(stopping.is_set())])
    dist.all_reduce(stop, op=dist.ReduceOp.MAX)
    if stop.item():
        save(model, step)
        break
```
"""

SEVERITY = "error"
NEXT = ("find out who ended it: the scheduler's log, the terminal, kubectl describe pod",)
