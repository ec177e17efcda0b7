"""The engine `ray`: actors of a Ray cluster, each with worker processes of its own below it.

`engine` (begin here) queues tasks and settles their futures, `actors` starts actors, listens to them and decides which gets which task.
`cluster` decides how many actors run where. `node` runs on a node: the engine of one machine, fed by Ray.
"""
