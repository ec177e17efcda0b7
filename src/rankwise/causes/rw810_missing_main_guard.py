"""A script starts a pool when it is imported

## What it is

A worker has to import the script, because the model's `build` is defined in it, and on the way comes to the line
that makes a pool. Instead of starting pools without end, the worker reports this.

## Why it happens

A new process knows nothing of what is defined in your script; it runs the script under another name to find out.
Whatever stands outside functions runs there too.

## How to fix it

Put what starts the pool under `if __name__ == "__main__":`, or move the build to a module and give its import path.

## Before

```python
def build():
    return torch.nn.Linear(10, 1)

pool = rankwise.Pool({"linear": rankwise.Model(build)})
```

## After

```python
def build():
    return torch.nn.Linear(10, 1)

if __name__ == "__main__":
    with rankwise.Pool({"linear": rankwise.Model(build)}) as pool:
        print(pool.submit("linear", torch.ones(1, 10)).result())
```
"""

SEVERITY = "error"
NEXT = ("put the pool under: if __name__ == '__main__':",)
