"""Decisions, without sockets and without a clock: `scheduler.py` (begin here) says what each worker does next.

`tasks.py` has tasks and their futures, chunks and parts; `state.py` what is known of models (queues, costs) and workers. `pool_state.py`
keeps all of it under one lock, and ends tasks.
"""
