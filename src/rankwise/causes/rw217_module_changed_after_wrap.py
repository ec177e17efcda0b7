"""The module was changed after DDP had wrapped it

## What it is

DDP notes the parameters once, in its constructor. Parameters that are added or replaced later are unknown to
it: their gradients are not averaged, so the ranks drift apart silently. Those that were replaced get no
gradient any more, and the next forward raises "Expected to have finished reduction".

## Why it happens

A head is swapped for fine-tuning, adapters are inserted, layers are frozen or thawed, or the module is
converted (`convert_sync_batchnorm`, weight norm, a lazy layer) after wrapping.

## How to fix it

Finish the module first, wrap it last. To change it during training, change the plain module and wrap it anew on
all ranks.

## Before

```python
model = DistributedDataParallel(net)
model.module.head = nn.Linear(512, 10)        # DDP knows nothing of it
```

## After

```python
net.head = nn.Linear(512, 10)
model = DistributedDataParallel(net)
```
"""

SEVERITY = "error"
NEXT = ("make all changes to the module before wrapping it, or wrap it again afterwards",)
