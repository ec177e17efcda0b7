"""A model's rows depend on each other, so they are not batched

## What it is

With `max_batch` over 1 the pool runs rows of several requests together. It looks, at the start and now and then, whether
a row gives the same alone, among copies of itself, and among other rows in another order. For this model it does not, or
its output has no row for each row of its input. From then on its requests run one by one and uncut, and no answer that
was found in a batch is handed out any more.

## Why it happens

Something in the model looks over the whole batch: a mean or a norm along dimension 0, BatchNorm in training mode, padding to
the longest row, an output that is as wide as its content, a cumulative sum, dynamic quantization with one scale for
the batch.

## How to fix it

Compute along the other dimensions only, pad to a fixed length, and call `eval()`. Where a model is meant to look at
all rows of a request, say `max_batch=1`.

## Before

```python
def forward(self, x):
    return (x - x.mean(0)) / x.std(0)             # of whatever happens to be in the batch
```

## After

```python
def forward(self, x):
    return (x - self.mean) / self.std             # of the training data, kept as buffers
```

## When to ignore it

Where the difference is known and does not matter, `Model(..., check_rows=False)` keeps the batches.
"""

SEVERITY = "warning"
NEXT = ("compute along other dimensions than the rows", "or say max_batch=1")
