"""Between the pool and its workers: `connection.py` (begin here) has the packets, the status page and the handle of one worker.

`sender.py` sends the scheduler's decisions, and a single task by the fast path; `listener.py` reads the workers' packets, unless the caller
that waits does so itself; `answers.py` gives results to futures.
"""
