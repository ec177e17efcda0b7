"""The step of --fit does not end

## What it is

`rankwise check --fit module:step` could not run `step(batch_size)`: not even one sample fits into memory, the function
fails for another reason, or the sizes that fit differ between hosts.

## Why it happens

The model and its optimizer state alone are larger than the device's memory; something else has taken it; the function
expects other arguments, or something that only the training script sets up.

## How to fix it

`step` takes one number, the batch size, makes data of that size and runs one training step. Build the model once, at
import. Where the model itself does not fit: smaller types, activation checkpointing, or sharding it.

## Before

```python
def step(batch):                     # expects a batch, not its size
    return model(batch)
```

## After

```python
model = build_model().to(device)
optimizer = torch.optim.AdamW(model.parameters())

def step(batch_size):
    loss = model(torch.randn(batch_size, 3, 224, 224, device=device)).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
```
"""

SEVERITY = "error"
NEXT = ("call it by hand: python -c 'import MODULE; MODULE.step(1)'",)
