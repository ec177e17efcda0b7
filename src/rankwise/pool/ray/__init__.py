"""The engine `ray`: actors of a Ray cluster, each with worker processes of its own below it.

`engine` queues, sends and settles; `handles` starts actors and listens to them; `actor` is what runs on a node: the engine of one
machine, fed by Ray. `cluster` speaks to the cluster, `placement` decides who goes where, `encoding` turns inputs and results into bytes.
"""
