"""DDP does not reduce some of the parameters that are trained

## What it is

DDP looks at the model once, when it wraps it. Parameters that were frozen then, or came later, get their gradients from
the local data only, and drift apart between the ranks.

## Why it happens

Layers are unfrozen after the first epochs; a head is added or replaced on the wrapped model.

## How to fix it

Wrap the model again after such a change, or wrap with everything trainable and freeze afterwards.

## Before

```python
model = DDP(net)                                 # net.backbone is frozen
net.backbone.requires_grad_(True)                # DDP does not notice
```

## After

```python
net.backbone.requires_grad_(True)
model = DDP(net)                                 # wrapped again: the reducer knows the backbone
```
"""

SEVERITY = "warning"
NEXT = ("wrap the model in DDP again after unfreezing, adding or replacing parameters",)
