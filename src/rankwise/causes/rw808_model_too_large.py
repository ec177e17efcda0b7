"""A model is larger than its device may hold

## What it is

Loaded or declared, the model takes more bytes than `memory` gives to all models of its device together. Evicting
others would not help. It is not kept.

## Why it happens

The budget was set for smaller models, or the model grew.

## How to fix it

Raise the budget, or make the model smaller (another dtype, another device).

## Before

```python
Pool({"large": Model("m:build")}, memory="100MB")
```

## After

```python
Pool({"large": Model("m:build")}, memory="4GB")
```
"""

SEVERITY = "error"
NEXT = ("raise memory=, or use a smaller model or dtype",)
