"""Ranks chose different backends

## What it is

Some ranks initialised `gloo` and others `nccl` (or another backend). They meet in the store, but each backend
then waits for its own kind.

## Why it happens

The usual line `"nccl" if torch.cuda.is_available() else "gloo"` answers differently on a node without a working
GPU: a driver problem, an empty `CUDA_VISIBLE_DEVICES`, a CPU build of torch.

## How to fix it

Choose the backend from the configuration, not from what one machine happens to have, and let a rank without a
GPU fail loudly.

## Before

```python
backend = "nccl" if torch.cuda.is_available() else "gloo"
dist.init_process_group(backend)
```

## After

```python
if args.backend == "nccl" and not torch.cuda.is_available():
    raise SystemExit(f"rank {os.environ['RANK']} on {socket.gethostname()} sees no GPU")
dist.init_process_group(args.backend)
```
"""

SEVERITY = "error"
NEXT = ("use the same backend on every rank; find out why one of them has no GPU",)
