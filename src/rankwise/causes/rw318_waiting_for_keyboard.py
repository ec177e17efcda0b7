"""A rank waits for somebody to type

## What it is

A rank stands in `breakpoint()`, `pdb.set_trace()` or `input()` and reads from the terminal. The other ranks wait for
it in a collective. Nothing is wrong: it goes on when it is given an answer.

## Why it happens

A breakpoint, on purpose or left behind; a library that asks before it downloads or overwrites something.

## How to fix it

Answer: the prompt is on the terminal, behind the rank's name. Ranks share the keyboard, so set breakpoints on one
rank only. Where nobody is there to answer (a batch job), take the question out, or give the library the option that
answers it.

## Before

```python
breakpoint()                              # all ranks read from one keyboard
```

## After

```python
if dist.get_rank() == 0:
    breakpoint()                          # `c` goes on; the others wait at their next collective
```
"""

SEVERITY = "warning"
NEXT = ("answer on the terminal (`c` leaves pdb)", "where nobody can answer, remove the breakpoint or the question")
