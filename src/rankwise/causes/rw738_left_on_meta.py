"""Part of a model on the meta device would be left without a value

## What it is

The model was built under `torch.device("meta")`, so its tensors have shapes and no values. The checkpoint has a value for all of them
but these.

## Why it happens

Buffers registered with `persistent=False` (position tables, masks) are in no checkpoint: the constructor computes them, and on
the meta device it computed nothing. The same goes for names in `allow_missing`.

## How to fix it

Build those buffers on a real device, or compute them after loading.

## Before

```python
with torch.device("meta"):
    model = Net()
rankwise.load_weights(model, "last.pt")
```

## After

```python
with torch.device("meta"):
    model = Net()
model.positions = make_positions(device="cpu")     # real values for what no checkpoint has
rankwise.load_weights(model, "last.pt")
```
"""

SEVERITY = "error"
NEXT = ("give these buffers real values first, or build the model on a real device",)
