r"""A rank is inside native code that does not let Python run

## What it is

The rank is in one call of C code that holds Python's global lock (the GIL): no other Python thread of the
process runs, signals handled in Python wait, and the call cannot be interrupted. It may be working or it may
never end.

## Why it happens

A regular expression that backtracks exponentially (`(a+)+$`), arithmetic on integers of millions of digits,
`json` or `pickle` of something huge, an extension that does long work without releasing the GIL.

## How to fix it

Rewrite the pattern, limit the input, or move the work into a process of its own with a timeout.

## Before

```python
re.match(r"(\w+\s?)*$", line)                # exponential in the length of a line that does not match
```

## After

```python
re.match(r"\w+(?:\s\w+)*\s?$", line[:10_000])
```
"""

SEVERITY = "warning"
NEXT = ("look at the named call: limit its input, or run it in a process of its own with a timeout",)
