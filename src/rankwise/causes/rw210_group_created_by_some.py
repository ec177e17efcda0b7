"""new_group was called by some ranks only

## What it is

`new_group` must be called by every rank of the job, also by those that will not be members. Here some ranks
left it out.

## Why it happens

The call stands under `if rank in members:`. It can even work once: ranks number their groups by counting the
calls, and the mistake shows at the next `new_group`, when the counts no longer agree.

## How to fix it

Call it on all ranks and use the group only on members. `use_local_synchronization=True` makes a call by members
alone legal; the groups' names then come from the ranks in them instead of from the count.

## Before

```python
if rank in (0, 1):
    group = dist.new_group([0, 1])
```

## After

```python
group = dist.new_group([0, 1])             # on every rank
if rank in (0, 1):
    dist.all_reduce(x, group=group)
```
"""

SEVERITY = "error"
NEXT = ("call new_group on every rank, members or not",)
