"""Front-end processes, which read HTTP where a single Python process would be the limit. Begin with `front_ends.py`, which starts them and
hands them connections; `front_end_process.py` runs in each; `framing.py` is the protocol between them."""
