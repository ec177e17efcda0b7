"""Front-end processes, which read HTTP where a single Python process would be the limit. Begin with `front_ends.py`, which starts them and
hands them connections; `child.py` runs in each; `frames.py` is the protocol between them."""
