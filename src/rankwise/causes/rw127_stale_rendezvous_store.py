"""After a restart the ranks were given addresses of processes that are dead

## What it is

The workers were restarted, and the new ranks cannot connect to each other: "Connection refused" from gloo, or an
`init_process_group` that never returns. The network is fine. They call ports of the ranks that ended before the
restart.

## Why it happens

By default the ranks share torchrun's own store, which outlives a restart. gloo leaves its ranks' addresses there
under the same keys in every start, and a rank that is quick reads the address its peer had the last time before
the peer has written the new one. Seen with torch 2.13 in many restarts on one node.

## How to fix it

Set `TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1` for torchrun: then every start has a store of its own. `rankwise run`
sets it where restarts are allowed and you have not set it yourself.

## Before

```console
$ torchrun --standalone --nproc-per-node 2 --max-restarts 3 train.py
```

## After

```console
$ TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun --standalone --nproc-per-node 2 --max-restarts 3 train.py
```
"""

SEVERITY = "error"
NEXT = (
    "set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 for torchrun, so that each start has a store of its own",
    "or start the job with rankwise run, which sets it",
)
