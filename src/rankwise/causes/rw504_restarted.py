"""The job was restarted by the elastic launcher

## What it is

Workers failed, and torchrun's `--max-restarts` started all of them again. The verdict covers the latest start;
the failure before it is named in this note.

## Why it happens

A rank crashed or a node left or joined. Restarts hide errors that come back at the same place each time.

## How to fix it

Read the first failure. Make sure that the script resumes from a checkpoint, or a restart begins at step 0.

## Before

```console
$ rankwise run --standalone --nproc-per-node 4 --max-restarts 3 train.py
```

## After

```python
if os.path.exists("last.pt"):
    state = torch.load("last.pt", map_location="cpu")
    model.module.load_state_dict(state["model"])
    first_step = state["step"] + 1
```

## When to ignore it

When nodes are expected to come and go, and the script resumes.
"""

SEVERITY = "info"
NEXT = ("read the failure that led to the restart; check that the script resumes where it was",)
