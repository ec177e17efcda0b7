"""The optimizer updates parameters that are not the model's

## What it is

Some of the parameters the optimizer was given are not in the model any more, or never were. Their updates change
nothing, and the model's own are never updated: the loss stays where it is and nothing fails.

## Why it happens

A layer was replaced after the optimizer had been created, the optimizer was made from another copy of the model, or
from a model that was then loaded anew.

## How to fix it

Finish the model, wrap it, and create the optimizer from `model.parameters()` afterwards.

## Before

```python
optimizer = torch.optim.AdamW(net.parameters())
net.head = nn.Linear(512, 10)            # the optimizer still holds the old head
model = train.wrap(net)
```

## After

```python
net.head = nn.Linear(512, 10)
model = train.wrap(net)
optimizer = torch.optim.AdamW(model.parameters())
```
"""

SEVERITY = "error"
NEXT = ("create the optimizer from model.parameters() after the last change to the model",)
