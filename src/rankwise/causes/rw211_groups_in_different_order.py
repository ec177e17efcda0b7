"""Ranks create their process groups in a different order

## What it is

Groups are matched between ranks by the order in which they were created. Here two ranks created the same groups
in a different order, so what one rank calls the first group is the other's second.

## Why it happens

Each rank creates "its own" group first, or loops over a set or dict whose order differs between processes.

## How to fix it

Create all groups on all ranks in one fixed order, then pick one's own.

## Before

```python
mine = dist.new_group(ranks_of_node[node])                   # own node first
others = [dist.new_group(r) for n, r in ranks_of_node.items() if n != node]
```

## After

```python
groups = {n: dist.new_group(ranks_of_node[n]) for n in sorted(ranks_of_node)}
mine = groups[node]
```
"""

SEVERITY = "error"
NEXT = ("create all groups on all ranks in one fixed order",)
