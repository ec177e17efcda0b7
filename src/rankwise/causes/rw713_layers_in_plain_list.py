"""Layers are kept where the model does not see them

## What it is

A plain list, tuple or dict of a module holds layers or parameters. `parameters()`, `to()` and `state_dict()` do not look
into those: the layers stay on the CPU, are not trained, not averaged over the ranks and not saved.

## Why it happens

`self.layers = [nn.Linear(8, 8) for _ in range(4)]` looks right and runs.

## How to fix it

Use `nn.ModuleList`, `nn.ModuleDict`, `nn.ParameterList` or `nn.ParameterDict`.

## Before

```python
self.layers = [nn.Linear(8, 8) for _ in range(4)]
```

## After

```python
self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
```
"""

SEVERITY = "error"
NEXT = ("keep layers in nn.ModuleList or nn.ModuleDict, parameters in nn.ParameterList or nn.ParameterDict",)
