"""The pool cannot start workers

## What it is

The process that imports torch and forks the workers ended before it was ready, or three workers in a row died
before they could take a task. All tasks fail with this finding.

## Why it happens

torch cannot be imported in a fresh interpreter, the machine refuses new processes, or there is no memory for one.

## How to fix it

Import torch by itself and read what is printed. Look at `ulimit -u` and at the memory of the control group.

## Before

```python
# python -c "import torch"                        # fails, as it does in the workers
```

## After

```python
# python -c "import torch"                        # prints nothing
with rankwise.Pool(models) as pool:
    pool.submit("mlp", x)
```
"""

SEVERITY = "error"
NEXT = ("run: python -c 'import torch' and look at what it prints",)
