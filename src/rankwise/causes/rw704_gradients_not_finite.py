"""The gradients of a step are not finite

## What it is

A gradient is infinite or not a number. DDP's average carries it to all ranks; stepping with it would make every weight
not a number. The step is skipped on all ranks alike, and the training goes on with the next one.

## Why it happens

With fp16 now and then, by design: the loss scale is tried and lowered. With fp32 and bf16: a learning rate that is too
high, a logarithm or a division of zero, a broken sample.

## How to fix it

A few are harmless. Many in a row stop the training: lower the learning rate, clip the gradients, look at the samples
of that step, run it once under `torch.autograd.set_detect_anomaly(True)`.

## Before

```python
loss = (target / prediction.sum(dim=1)).log().mean()
```

## After

```python
loss = (target / prediction.sum(dim=1).clamp(min=1e-6)).clamp(min=1e-6).log().mean()
```

## When to ignore it

In the first steps of an fp16 training.
"""

SEVERITY = "error"
NEXT = ("lower the learning rate, clip the gradients, or look at the samples of that step",)
