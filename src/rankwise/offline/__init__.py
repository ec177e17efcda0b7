"""Offline inference: rows in, rows out, in order, each exactly once, whatever is killed on the way.

`sources` read rows in batches, `executing` runs batches in this process or in a pool, `parts` and `journal` keep what is done,
`sinks` write the final output from the parts. `running` puts them together: begin there. Only `child` and `gathering` import torch.
"""
