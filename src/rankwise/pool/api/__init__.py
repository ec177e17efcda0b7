"""What users call: `pool.py` (begin here), `model.py` and `ensembles.py`.

`streams.py` is the engine of `map` and `amap`; `grouped_streams.py` lets quick requests travel together. What users give is checked beside
the thing it is about, before anything runs: an error names the argument, what it is, and what it may be.
"""
