"""GPU memory is already taken

## What it is

Another process has memory on a GPU before the job starts. The job runs out of memory at a batch size that should fit.

## Why it happens

Another job shares the GPU; ranks of an earlier one were not ended; every rank of a job opened a context on GPU 0.

## How to fix it

End what is left over, or use other GPUs.

## Before

```console
$ nvidia-smi --query-compute-apps=pid,used_memory --format=csv
pid, used_gpu_memory [MiB]
4242, 61034 MiB
```

## After

```console
$ kill 4242                                  # after making sure that nobody needs it
```
"""

SEVERITY = "error"
NEXT = ("end the process that holds it, or choose other GPUs with CUDA_VISIBLE_DEVICES",)
