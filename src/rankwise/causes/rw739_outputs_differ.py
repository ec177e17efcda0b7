"""A converted model does not compute what the original does

## What it is

`rankwise weights convert` ran the model and its converted form on the same input, and the outputs differ by more than rounding.
The converted file was not kept.

## Why it happens

The model does something that exporting cannot see: it depends on Python state, on random numbers, on the time, or on which branch
the example input took. Or it was converted to a narrower dtype, which changes more than the tolerance allows.

## How to fix it

Make `forward` depend on its inputs and weights only (`model.eval()` is called for you). For a narrower dtype, say which
difference is acceptable with `--tolerance`.

## Before

```python
def forward(self, x):
    return self.net(x) + torch.randn(())      # never the same twice
```

## After

```python
def forward(self, x):
    return self.net(x)
```
"""

SEVERITY = "error"
NEXT = ("make forward depend on inputs and weights only, or give --tolerance",)
