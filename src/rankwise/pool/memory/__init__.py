"""Values as bytes: `encoding.py` (begin here) turns nested values into nodes, `inputs.py` encodes requests, `results.py` decodes answers.

Large arrays lie in shared memory (`shared_memory.py`); `nested.py` takes containers apart and compares values bit by bit.
"""
