"""`check`: what would keep a job from starting, found before it starts.

Each file in `checks/` is one check: `look` gathers facts on a host, `judge` turns the facts of all hosts into findings and touches nothing.
Hosts meet through plain sockets (`listener`, `joining`), because what is to be found may be what keeps torch from meeting.
`run` puts it together.
"""
