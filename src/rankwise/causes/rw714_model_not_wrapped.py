"""Several ranks train a model that nothing keeps together

## What it is

There are several ranks, and the model that is trained is the bare module. Each rank trains a model of its own; the one
that is saved has seen only its own part of the data. Nothing fails.

## Why it happens

The result of wrapping was not used, `model.module` was passed on, or the script was written for one process and started
with several.

## How to fix it

Train the wrapped model, and call that one in the loop.

## Before

```python
train.wrap(net)                                       # the result is thrown away
step = train.Step(net, optimizer)
```

## After

```python
model = train.wrap(net)
step = train.Step(model, optimizer)
```
"""

SEVERITY = "error"
NEXT = ("pass what train.wrap(…) returned, and call that in the loop",)
