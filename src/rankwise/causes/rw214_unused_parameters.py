"""Parameters got no gradient, on all ranks

## What it is

DDP waits for a gradient of every parameter that requires one. The named parameters took no part in the loss, so
the reduction was never finished, and the next forward raises "Expected to have finished reduction in the prior
iteration".

## Why it happens

A layer is defined but not used in `forward`; an output is not used in the loss; a branch was switched off; a
pretrained head was left in.

## How to fix it

Remove or freeze what is not used (`requires_grad_(False)` before wrapping). `find_unused_parameters=True` also
works, and costs a walk through the graph in every step.

## Before

```python
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head, self.aux = nn.Linear(8, 8), nn.Linear(8, 2), nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.body(x))            # aux is never used
```

## After

```python
net = Net()
net.aux.requires_grad_(False)                     # or remove it
model = DistributedDataParallel(net)
```
"""

SEVERITY = "error"
NEXT = ("remove or freeze the named parameters before wrapping, or pass find_unused_parameters=True",)
