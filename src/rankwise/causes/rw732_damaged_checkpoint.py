"""A checkpoint is cut off or its bytes have changed

## What it is

What the file says about itself is not true: tensors end behind the end of the file, a checksum differs, a header is no JSON.

## Why it happens

The process or the machine stopped while the file was written, the disk was full, a copy or download broke off, or a
disk or cable changed a bit. `torch.save` straight onto the final name leaves exactly this behind when it is killed.

## How to fix it

Use an earlier checkpoint, or copy the file again and compare sizes. Write checkpoints under another name and rename them
when they are complete.

## Before

```python
torch.save(state, "last.pt")
```

## After

```python
torch.save(state, "last.pt.tmp")
os.replace("last.pt.tmp", "last.pt")     # a reader sees the old file or the new one, never half
```
"""

SEVERITY = "error"
NEXT = ("copy it again, or use an earlier checkpoint",)
