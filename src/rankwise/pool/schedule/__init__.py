"""Decisions, without sockets and without a clock: `scheduler.py` (begin here) says what each worker does next.

`tasks.py` has tasks and their futures, chunks and parts; `state.py` the records of models (queues, costs) and workers. `pool_state.py`
keeps them under one lock, and ends tasks.
"""
