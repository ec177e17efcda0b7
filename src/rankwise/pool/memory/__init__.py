"""Values as bytes: `encoding.py` (begin here) turns nested values into nodes, takes containers apart and compares values bit by bit.

`shared_memory.py` is where large arrays lie; `requests.py` puts the inputs of a request there and decodes its answer.
"""
