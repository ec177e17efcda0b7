"""The job is stuck or ended badly, and the cause is none of the known ones

## What it is

Something is wrong, and the evidence fits no cause of the catalogue. The finding says what is certain: who waits
where, who does not, who has ended. It does not guess.

## Why it happens

A fault that is not described yet, or a part of the evidence was missing (then RW505 says which).

## How to fix it

Open `report.html` in the run folder: the last collectives of all ranks and their merged stacks often show where
one differs. Run again with a shorter `--stall-after`, to look while it is fresh. If you find the cause, please
report it with the run folder's `evidence/`: it may become a page of its own.

## Before

```console
$ rankwise run --standalone --nproc-per-node 2 train.py
```

## After

```console
$ rankwise run --on-stall report --stall-after 15 --standalone --nproc-per-node 2 train.py
```
"""

SEVERITY = "warning"
NEXT = ("open report.html in the run folder and compare the ranks' last collectives and stacks",)
