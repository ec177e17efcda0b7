"""A DDP checkpoint was loaded into a bare model

## What it is

Every name in the checkpoint starts with `module.`, which the DDP wrapper adds, and the model that loads it has
no such prefix (or the other way round). `load_state_dict` reports all keys as missing and all as unexpected.

## Why it happens

`model.state_dict()` of the wrapped model was saved. Loading with `strict=False` hides the error and leaves the
model untrained.

## How to fix it

Save `model.module.state_dict()`. For checkpoints that exist already, remove the prefix when loading.

## Before

```python
torch.save(ddp_model.state_dict(), "last.pt")
net.load_state_dict(torch.load("last.pt"))             # Missing key(s): "weight" … Unexpected key(s): "module.weight"
```

## After

```python
from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present

torch.save(ddp_model.module.state_dict(), "last.pt")   # from now on
state = torch.load("old.pt", map_location="cpu")       # and for what exists
consume_prefix_in_state_dict_if_present(state, "module.")
net.load_state_dict(state)
```
"""

SEVERITY = "error"
NEXT = ("save model.module.state_dict(), or strip the prefix with consume_prefix_in_state_dict_if_present",)
