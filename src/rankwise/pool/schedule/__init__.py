"""Decisions, without sockets and without a clock: `scheduler.py` (begin here) says what each worker does next.

`tasks.py` holds tasks and queues, `groups.py` chunks and parts, `state.py` what is known of models and workers, `blame.py` who is at fault
for a death. `pool_state.py` keeps all of it under one lock, and ends tasks.
"""
