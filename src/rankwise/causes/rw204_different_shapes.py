"""Ranks pass tensors of different sizes to the same collective

## What it is

A collective needs tensors of the same size on all ranks. With gloo the first rank to notice aborts
(`gloo::EnforceNotMet`, SIGABRT) and the others report "Connection reset by peer"; a `broadcast` into a larger
tensor leaves its tail as it was, without an error. With NCCL the outcome is undefined: a hang, a crash or wrong
data.

## Why it happens

The size depends on local data: the last, smaller batch, a variable number of detections, predictions that were
filtered.

## How to fix it

Agree on the size first: gather the lengths, pad to the longest, cut afterwards. For Python objects of any size
use `all_gather_object`.

## Before

```python
out = [torch.zeros_like(predictions) for _ in range(world_size)]
dist.all_gather(out, predictions)                # predictions has another length on every rank
```

## After

```python
length = torch.tensor([len(predictions)], device=predictions.device)
lengths = [torch.zeros_like(length) for _ in range(world_size)]
dist.all_gather(lengths, length)
longest = int(max(lengths))
padded = predictions.new_zeros(longest, *predictions.shape[1:])
padded[: len(predictions)] = predictions
out = [torch.zeros_like(padded) for _ in range(world_size)]
dist.all_gather(out, padded)
out = [part[: int(n)] for part, n in zip(out, lengths)]
```
"""

SEVERITY = "error"
NEXT = ("gather the lengths first, pad to the longest, cut after the collective",)
