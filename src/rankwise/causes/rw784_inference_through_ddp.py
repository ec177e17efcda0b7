"""DDP is used for inference

## What it is

The model is wrapped in DDP and only ever called, never trained. DDP averages gradients; there are none. What it still
does is to make the ranks wait for each other (buffers at each forward, collectives at the end).

## Why it happens

A training script was turned into an evaluation script.

## How to fix it

Run the plain model, sharded over processes that need not know each other: `rankwise predict`, or a pool.

## Before

```python
model = DDP(net)
for x in loader:
    outputs.append(model(x))
```

## After

```python
pool = rankwise.Pool({"net": rankwise.Model("my_models:build", weights="last.pt")}, workers=4)
outputs = list(pool.map("net", batches))
```
"""

SEVERITY = "info"
NEXT = ("use rankwise predict, or rankwise.Pool, with the plain model",)
