"""Worker processes. `supervisor.py` runs in the pool's process: it starts workers, and replaces them when they die or hang.

The other files run in the workers, and import torch, as nothing else in the pool but `inprocess.py`: `fork_server.py` (both ends of it)
forks workers, `worker.py` (begin here) is the loop of one, `model_building.py` builds models, `runner.py` calls them, `row_checks.py`
checks whether rows of a batch are independent, `lanes.py` is their shared memory.
"""
