"""torch cannot be imported

## What it is

`import torch` fails, or does not come to an end, in the Python that runs the check. No rank can start there.

## Why it happens

It is not installed in this environment; a library it needs is missing or of another version; it was built for another
processor; the memory limit is too small to load it; `PYTHONPATH` leads to something else that is called `torch`.

## How to fix it

Try it by itself: `python -c "import torch"`. Use the same environment as on the other hosts.

## Before

```console
$ python -c "import torch"
ImportError: libcudart.so.13: cannot open shared object file
```

## After

```console
$ pip install --force-reinstall torch
$ python -c "import torch; print(torch.__version__)"
2.13.0
```
"""

SEVERITY = "error"
NEXT = ("python -c 'import torch' in the same environment shows the whole error",)
