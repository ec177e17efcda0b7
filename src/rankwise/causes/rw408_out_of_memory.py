"""A rank ran out of memory

## What it is

An allocation failed with an exception: `torch.OutOfMemoryError` on a GPU, `MemoryError` or "can't allocate
memory" on the host. The process had the chance to say so, unlike in RW404.

## Why it happens

The batch or its longest sequence is too large on this rank; another process uses the same GPU (all ranks on
device 0 is the classic); memory is fragmented; a limit (`ulimit -v`, a control group) is set.

## How to fix it

Give each rank its own device before anything touches CUDA, bound the batch by tokens rather than by samples,
use gradient accumulation or checkpointing. Do not catch the exception and continue on one rank: the others wait
in their all-reduce (RW201).

## Before

```python
model.to("cuda")                                     # every rank on device 0
```

## After

```python
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
model.to(device)
```
"""

SEVERITY = "error"
NEXT = ("check that each rank has its own device; then make the step smaller on the named rank",)
