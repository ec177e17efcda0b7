"""Worker processes, seen from the parent: `dispatcher.py` (begin here) stands between callers and workers.

`starting.py` starts workers, `supervisor.py` replaces them when they die or hang, `answers.py` takes what they answer. `child/` runs in
the worker processes.
"""
