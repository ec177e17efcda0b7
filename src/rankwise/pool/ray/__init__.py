"""The engine `ray`: actors of a Ray cluster, each with worker processes of its own below it.

`engine` queues and settles, `actors` starts actors, listens to them and decides which gets which task. `cluster` speaks to the cluster
and decides what is asked of it. `node` is what runs there: the engine of one machine, fed by Ray.
"""
