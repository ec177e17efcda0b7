"""Between parent and workers: `messages.py` (begin here) has the packets, and the page of memory that both sides see.

`handle.py` is the end of one worker here, `sender.py` sends what was decided, `listener.py` reads answers. For speed only:
`fast_path.py` (a single task), `spinning.py`, `timer.py`.
"""
