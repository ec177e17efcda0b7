"""A model raised an exception, or gave an output, that cannot travel

## What it is

The model's `forward` raised, and the exception's class cannot be had in the caller's process, so it could not be handed
over as it is: its text and the worker's traceback are in the finding. Or the model returned something that cannot be
pickled: a generator, an open file, a lock.

## Why it happens

The exception's class is defined inside a function, or in a module that the caller cannot import. Or it is a `SystemExit`
or `KeyboardInterrupt`, which would end the caller if it were raised there. Or hundreds of rows of one batch failed at
once with long messages, for which there is no room in one answer. An exception of any other class arrives as itself;
attributes that cannot be pickled are left out, and very long messages lose their middle.

## How to fix it

Fix what the traceback shows. To catch an exception by its class, make that class importable. Return tensors, arrays,
plain values, or lists, tuples and dicts of them.

## Before

```python
def forward(self, x):
    class Bad(Exception): ...                     # nobody else can import it
    raise Bad("no")
```

## After

```python
class Bad(Exception): ...

def forward(self, x):
    raise Bad("no")
```
"""

SEVERITY = "error"
NEXT = ("read the worker's traceback in the finding",)
