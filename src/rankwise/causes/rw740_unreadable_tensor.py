"""A tensor of a kind that has no plain bytes

## What it is

A sparse, quantized, nested or otherwise special tensor: it is not a block of numbers with a shape, so it cannot be mapped or
copied as one. It was needed for the model.

## Why it happens

The checkpoint was saved from a quantized or compressed model, or on a device with tensors of its own.

## How to fix it

Save the plain form: `tensor.to_dense()`, `tensor.dequantize()`, `tensor.cpu()`.

## Before

```python
torch.save({"weight": weight.to_sparse()}, "last.pt")
```

## After

```python
torch.save({"weight": weight}, "last.pt")
```
"""

SEVERITY = "error"
NEXT = ("save it as a plain tensor",)
