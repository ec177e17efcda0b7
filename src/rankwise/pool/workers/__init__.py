"""Worker processes. `supervisor.py` runs in the pool's process: it starts workers, and replaces them when they die or hang.

All else runs in the workers, and is the only part of the pool that imports torch, besides `inprocess.py`: `fork_server.py` (both ends
of it) forks them; `worker.py` (begin here) is the loop of one; `loading.py` builds models, `runner.py` calls them, `row_checks.py` looks
whether rows of a batch are independent, `lanes.py` is their shared memory.
"""
