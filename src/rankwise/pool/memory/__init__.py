"""Inputs and outputs as bytes: `encoding.py` (begin here) turns nested values into nodes, and compares values bit by bit.

`shared_memory.py` allocates shared memory; `requests.py` puts the large arrays of a request there and decodes its answer.
"""
