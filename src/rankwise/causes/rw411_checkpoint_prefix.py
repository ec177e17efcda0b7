"""A DDP checkpoint was loaded into a bare model

## What it is

Every name in the checkpoint starts with `module.`, which the DDP wrapper adds, and the model that loads it has
no such prefix (or the other way round). `load_state_dict` reports all keys as missing and all as unexpected.

## Why it happens

`model.state_dict()` of the wrapped model was saved. Loading with `strict=False` hides the error and leaves the
model untrained.

## How to fix it

Load with `rankwise.load_weights`, which takes off `module.` and `_orig_mod.` in any order and leaves no parameter without its
value. From now on, save `model.module.state_dict()`.

## Before

```python
torch.save(ddp_model.state_dict(), "last.pt")
net.load_state_dict(torch.load("last.pt"))             # Missing key(s): "weight" … Unexpected key(s): "module.weight"
```

## After

```python
rankwise.load_weights(net, "last.pt")                  # for what exists

torch.save(ddp_model.module.state_dict(), "last.pt")   # from now on
```
"""

SEVERITY = "error"
NEXT = ("load it with rankwise.load_weights(model, path), which takes the prefix off", "from now on save model.module.state_dict()")
