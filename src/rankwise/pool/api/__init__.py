"""What users call: `pool.py` (begin here), `model.py` and `ensembles.py`.

`streams.py` is the engine of `map` and `amap`; `grouped_streams.py` lets quick requests travel together. Arguments are checked before
anything runs, in the file that they belong to: an error names the argument, what it is, and what it may be.
"""
