"""A model could not be built

## What it is

The model's `build` raised, its weights could not be loaded, or the worker died in it. Its tasks fail with this
finding, which holds the traceback. An exception is not tried again; a worker that dies is, three times.

## Why it happens

An import that fails in the worker, a wrong path, weights of another architecture, or memory that does not
suffice while loading.

## How to fix it

Call the build in the shell first, from the same folder. Workers import it as `python -c "import my_models"` would.

## Before

```python
Pool({"mlp": Model("models:build", weights="old.pt")})
```

## After

```python
Pool({"mlp": Model("my_project.models:build", weights="runs/a/last.pt")})
```
"""

SEVERITY = "error"
NEXT = ("call the build by itself; the traceback is its own",)
