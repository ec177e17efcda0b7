"""The model ties two parameters that differ in the checkpoint

## What it is

Two names of the model are one tensor (an embedding that is also the output layer), and the checkpoint has two different
tensors under them. Whichever came last would win.

## Why it happens

The checkpoint was trained without tying, or the tie was lost on the way: `model.to_empty()`, a deep copy of one half, a conversion
that copied both.

## How to fix it

Build the model without the tie, or make the two equal in the checkpoint.

## Before

```python
model.head.weight = model.embedding.weight
rankwise.load_weights(model, "untied.pt")
```

## After

```python
model = Net(tie_weights=False)
rankwise.load_weights(model, "untied.pt")
```
"""

SEVERITY = "error"
NEXT = ("build the model without tying these",)
