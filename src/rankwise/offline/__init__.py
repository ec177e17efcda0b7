"""Offline inference: rows in, rows out, in order, each exactly once, whatever is killed on the way. Begin with `running.predict`.

`source` opens an input, `executing` runs its batches here or in a pool, `parts` and `record_log` keep what is done in `workspace`, and
`output` writes the file from the parts. Each file format is one module of `formats`. Only `child` and `gathering` import torch.
"""
