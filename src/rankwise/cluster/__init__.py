"""The pool on a Ray cluster (`Pool(..., engine="ray")`): actors, each with worker processes of its own below it.

Begin with `engine`, which queues tasks and settles their futures. `placement` decides how many actors run where, `actors` starts them,
listens to them and decides which actor gets which task, `membership` joins the cluster. `node` runs on a node: the engine of one machine,
fed by Ray. The pool knows this room by its name only (`ENGINES` of `pool/backend.py`).
"""
