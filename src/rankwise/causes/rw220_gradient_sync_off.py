"""A rank had gradient synchronisation switched off in a step in which the others had it on

## What it is

DDP reduces gradients in `backward()` unless the forward ran under `no_sync()` or with
`require_backward_grad_sync = False`. Here one rank ran a step with the synchronisation off and the others ran the
same step with it on. That rank makes one gradient all-reduce less; the others wait for it, at once or at the end of
the epoch, and until then gradients of different steps are added to each other.

## Why it happens

The decision to synchronise is taken from something that differs between ranks: a count of tokens or samples in the
window, a loss, a batch that was dropped. Gradient accumulation must open and close its window in the same step on
every rank.

## How to fix it

Decide from the step's number, which is the same everywhere, or agree on the decision first.

## Before

```python
pending += tokens_in(batch)                              # differs between ranks
model.require_backward_grad_sync = pending >= budget
```

## After

```python
model.require_backward_grad_sync = (step + 1) % accumulate == 0
# or, by tokens: agree on them first
total = torch.tensor([tokens_in(batch)], device=device)
dist.all_reduce(total)
pending += total.item()
model.require_backward_grad_sync = pending >= budget * world_size
```
"""

SEVERITY = "error"
NEXT = (
    "switch the gradient synchronisation on and off in the same steps on every rank: decide by the step's number, or agree on it first",
)
