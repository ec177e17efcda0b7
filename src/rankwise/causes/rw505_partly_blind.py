"""Something could not be seen

## What it is

A part of the evidence is missing, so the verdict may be less exact than usual. The finding says which part and
why. The job itself is not affected.

## Why it happens

- The probe did not load: the environment was cleared (`env -i`, `sudo`), or Python runs with `-I`, `-E` or
  `-S`.
- Stacks could not be read: ptrace is refused, as in many containers.
- torch's record of collectives is off (`TORCH_FR_BUFFER_SIZE=0`) or has another form in this version.
- A node stopped answering.
- rankwise itself failed at something: a full disk, no descriptors or memory left, a bug. The traceback is in
  `logs/rankwise.log` of the run folder; please report a bug.

## How to fix it

Pass the environment on. Allow ptrace in the container. Leave torch's recorder on; it is on by default.

## Before

```console
$ docker run image rankwise run --standalone --nproc-per-node 2 train.py
```

## After

```console
$ docker run --cap-add SYS_PTRACE image rankwise run --standalone --nproc-per-node 2 train.py
```

## When to ignore it

When the verdict is clear without it.
"""

SEVERITY = "info"
NEXT = ("allow ptrace (--cap-add SYS_PTRACE), pass the environment on to the ranks",)
