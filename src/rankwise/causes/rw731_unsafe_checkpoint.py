"""A checkpoint would run code when it is loaded

## What it is

A file of `torch.save` is a pickle, and a pickle can ask for any function to be imported and called. This one asks for
more than rebuilding tensors. It was read without obeying it: nothing was imported, nothing was called.

## Why it happens

Most often a whole object was saved: the model itself, an `argparse.Namespace`, a NumPy number, a configuration class. Now and
then somebody wants to run a command on your machine. The finding lists what would have been called, so you can tell which.

## How to fix it

Save names and tensors only. A checkpoint that exists already, and comes from somebody you trust, still has its tensors:
`tensors_only=True` reads those and builds nothing else.

## Before

```python
torch.save(model, "last.pt")                     # asks for my_models.Net to be imported and built
```

## After

```python
torch.save({"model": model.state_dict()}, "last.pt")

rankwise.load_weights(model, "old.pt", tensors_only=True)   # for what exists: the tensors, and nothing that runs
```
"""

SEVERITY = "error"
NEXT = ("save state_dict() instead of objects",)
