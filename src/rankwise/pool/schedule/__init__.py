"""Decisions, without sockets: `scheduler.py` (begin here) says what each worker does next, at a time that it is given.

`tasks.py` has tasks and their futures, chunks and parts; `state.py` the records of models (queues, costs) and workers, and the clock.
`pool_state.py` keeps them under one lock, and ends tasks.
"""
