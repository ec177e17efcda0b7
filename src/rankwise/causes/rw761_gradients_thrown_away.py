"""Gradients of an accumulation window are thrown away

## What it is

Several backwards come before each step, and `zero_grad()` between them: only the gradients of the last reach the step.
The larger batch that accumulation promises is not there.

## Why it happens

`optimizer.zero_grad()` stands inside the loop over micro-steps.

## How to fix it

Call it once per window, right after (or before) the step.

## Before

```python
for micro in range(4):
    optimizer.zero_grad()
    (model(x[micro]).mean() / 4).backward()
optimizer.step()
```

## After

```python
optimizer.zero_grad()
for micro in range(4):
    (model(x[micro]).mean() / 4).backward()
optimizer.step()
```
"""

SEVERITY = "warning"
NEXT = ("move zero_grad() out of the loop over micro-steps, next to step()",)
