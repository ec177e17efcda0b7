"""A rank is waiting on a pipe

## What it is

The rank is blocked reading from or writing to a pipe: a subprocess, a `multiprocessing` queue or connection,
standard input.

## Why it happens

A subprocess filled its pipe (64 KiB) and waits for a reader, while the rank waits for it to end; a process is
joined while its queue still holds data; a program asks a question on standard input that nobody answers; the
other end is open in a forked child, so the end of the file never comes.

## How to fix it

Read all output (`subprocess.run(capture_output=True)` or `communicate()`), empty queues before joining, pass
`stdin=subprocess.DEVNULL`, and give every wait a timeout.

## Before

```python
tool = subprocess.Popen(["convert", path], stdout=subprocess.PIPE)
tool.wait()                          # the tool waits for someone to read
data = tool.stdout.read()
```

## After

```python
data = subprocess.run(["convert", path], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, timeout=60, check=True).stdout
```
"""

SEVERITY = "warning"
NEXT = ("read the pipe to its end (communicate), and give the wait a timeout",)
