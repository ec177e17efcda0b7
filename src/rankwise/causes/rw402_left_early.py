"""A rank ended on purpose while the others still needed it

## What it is

One rank left with `sys.exit`, `os._exit` or by reaching the end of the script, without an exception, while
other ranks were waiting for it in a collective.

## Why it happens

A check that applies to one rank ("nothing to do here"), a `main()` that returns early on ranks other than 0, an
exit after the last batch while rank 0 still evaluates, or a library that ends the process by itself.

## How to fix it

Let all ranks leave together: agree first, or meet at a barrier before the end. Exit with a code other than 0 if
something is wrong, so that the launcher stops the others.

## Before

```python
if not my_files:
    sys.exit(0)                           # the others wait for this rank
```

## After

```python
have = torch.tensor([len(my_files)])
dist.all_reduce(have, op=dist.ReduceOp.MIN)
if have.item() == 0:
    dist.destroy_process_group()
    sys.exit("at least one rank has no files")     # all ranks, exit code 1
```
"""

SEVERITY = "error"
NEXT = ("let all ranks leave together; exit with a code other than 0 when something is wrong",)
