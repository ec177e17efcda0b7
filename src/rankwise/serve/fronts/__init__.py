"""Front-end processes, where one Python process would be too slow at reading HTTP. Begin with `front_ends.py`, which starts them and
hands them connections; `child.py` runs in each; `frames.py` is the protocol between them."""
