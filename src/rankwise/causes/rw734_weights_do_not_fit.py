"""The names or shapes in a checkpoint are not those of the model

## What it is

After every wrapper's prefix was taken off on both sides, some names of the model have no tensor in the checkpoint, some
tensors have no place in the model, or the two have different shapes. Nothing was loaded.

## Why it happens

The model was built with other settings (width, number of classes, number of layers), a module was renamed since, or the file
belongs to another model.

## How to fix it

The finding shows both sides and the nearest name. Build the model as it was trained; where a part is new on purpose (a fresh
head), say so with a pattern. `strict=False` would have left those parameters at random values without a word.

## Before

```python
net.load_state_dict(torch.load("last.pt"), strict=False)
```

## After

```python
rankwise.load_weights(net, "last.pt", allow_missing=["head.*"], allow_unexpected=["old_head.*"])
```
"""

SEVERITY = "error"
NEXT = ("build the model as it was trained",)
