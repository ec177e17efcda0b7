"""The first step takes long

## What it is

The job is healthy. The first step is slower than the following ones, and no rank is stuck: something still
moves.

## Why it happens

Compilation (`torch.compile`, Triton), autotuning of convolutions, opening the connections of NCCL, DataLoader
workers that start and import, data that is not in the page cache yet.

## How to fix it

Nothing has to be fixed. If it bothers: keep the compiler's cache between runs (`TORCHINDUCTOR_CACHE_DIR`), use
`persistent_workers=True`.

## Before

```python
loader = DataLoader(data, num_workers=8)                # new workers in every epoch
```

## After

```python
loader = DataLoader(data, num_workers=8, persistent_workers=True)
```

## When to ignore it

Always, unless it takes longer than you know it should.
"""

SEVERITY = "info"
NEXT = ("nothing to do; the pace is learned from the steps that follow",)
