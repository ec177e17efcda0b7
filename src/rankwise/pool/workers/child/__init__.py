"""Runs inside worker processes, and is the only part of the pool that imports torch, besides `inprocess.py`.

`fork_server.py` forks the workers; `worker.py` (begin here) is the loop of one; `loading.py` builds models, `runner.py` calls them,
`lanes.py` is their shared memory, `row_checks.py` looks whether rows of a batch are independent.
"""
