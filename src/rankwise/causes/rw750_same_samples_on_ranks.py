"""The ranks train on the same samples

## What it is

Every rank draws the same batches. The average of equal gradients is one of them, so all ranks together learn what one
would have learnt; the other ranks' work is thrown away. Nothing fails and the loss falls.

## Why it happens

No `DistributedSampler`, and the same seed on all ranks; an iterable dataset that does not look at the rank; samples
drawn at random after all ranks were seeded alike.

## How to fix it

Give each rank its own part of the data.

## Before

```python
loader = DataLoader(data, batch_size=32, shuffle=True)
```

## After

```python
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=32, sampler=sampler)
for epoch in range(epochs):
    sampler.set_epoch(epoch)
```
"""

SEVERITY = "warning"
NEXT = ("give the DataLoader sampler=DistributedSampler(dataset)",)
