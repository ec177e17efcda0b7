"""What users call: `pool.py` (begin here), `model.py`, `ensembles.py`, and `models_file.py`, which reads MODELS.toml.

`streams.py` is the engine of `map`; `grouped_streams.py` lets quick requests travel together. `arguments.py` checks what users give.
"""
