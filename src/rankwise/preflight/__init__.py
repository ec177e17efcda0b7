"""`check`: finds what would keep a job from starting. Begin with `whole_check`, which puts it together.

Each file in `checks/` is one check: `look` gathers facts on a host, `judge` turns the facts of all hosts into findings and touches nothing.
Hosts meet through plain sockets: one leads (`conduct`, `meeting_listener`), the others join it (`joining`). torch's own store would fail on
the very faults that `check` looks for.
"""
