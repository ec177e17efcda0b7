"""A rank ended before it reached init_process_group

## What it is

One rank's process is gone without ever having joined, so the others wait for it in `init_process_group`. Its
own error is the root cause; the others' timeouts are echoes.

## Why it happens

An import that fails on one node, a missing file, a wrong device number, an argument error: all before the
process group exists, where no other rank can notice.

## How to fix it

Read that rank's exception: it is in the finding and whole in `logs/rank-N.log`. Then make sure that all nodes
have the same code, packages and data.

## Before

```python
data = open(f"/data/part-{rank}.bin", "rb").read()    # rank 3's file is not there
dist.init_process_group("gloo")
```

## After

```python
path = Path(f"/data/part-{rank}.bin")
dist.init_process_group("gloo")
missing = torch.tensor([0 if path.exists() else 1])
dist.all_reduce(missing)
if missing.item():
    raise SystemExit(f"{missing.item()} rank(s) lack their part; here: {path}")
```
"""

SEVERITY = "error"
NEXT = ("fix the error of the rank that ended; its log has the whole traceback",)
