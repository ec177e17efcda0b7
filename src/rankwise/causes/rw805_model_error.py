"""A model raised an exception that cannot travel

## What it is

The model's `forward` raised, and the exception object cannot be pickled, so it could not be handed over as it is.
Its text and the worker's traceback are in the finding. An exception that can be pickled arrives as itself.

## Why it happens

The exception's class is defined inside a function, takes other arguments than it passes to `Exception`, or holds
something that cannot be copied to another process. Or it is a `SystemExit` or `KeyboardInterrupt`, which would end
the caller if it were raised there.

## How to fix it

Fix what the traceback shows. To catch it by its class, make that class importable and let it pass its arguments
on.

## Before

```python
class Bad(Exception):
    def __init__(self, a, b):
        super().__init__(f"{a} {b}")              # pickle would call Bad("a b")
```

## After

```python
class Bad(Exception):
    def __init__(self, a, b):
        super().__init__(a, b)
```
"""

SEVERITY = "error"
NEXT = ("read the worker's traceback in the finding",)
