"""Between the pool and its workers: `connection.py` (begin here) has the packets, the status page and the handle of one worker.

`sender.py` sends what was decided, and a single task by the fast path; `listener.py` reads what workers say, unless the caller that waits
does so itself; `answers.py` takes it in.
"""
