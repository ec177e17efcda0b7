"""A checkpoint does not fit what it is to be loaded into

## What it is

The checkpoint is whole, but of another model or optimizer, without one of the things that are to be restored, or not visible to
all ranks. When saving: the state holds something that could not be loaded again with `weights_only=True`.

## Why it happens

The model was changed between two runs in the same folder, an optimizer has other parameter groups, a scheduler's state holds an
object of a class of yours, or the folder is on one node's own disk.

## How to fix it

Resume with the model that was saved, or begin in another folder and take over the weights only, with `rankwise.load_weights`.
Keep plain values (numbers, strings, tensors, lists, dicts) in `state_dict`. Use a folder all nodes share.

## Before

```python
net.head = nn.Linear(512, 100)                       # it had 10 outputs when it was saved
train.Checkpoints("runs/a", model=train.wrap(net)).resume()
```

## After

```python
train.Checkpoints("runs/b", model=train.wrap(net)).resume()
```
"""

SEVERITY = "error"
NEXT = ("resume with the same model and optimizer, or begin in another folder",)
