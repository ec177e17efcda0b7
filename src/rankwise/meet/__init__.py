"""Where hosts and ranks meet: what `session`, `check` and `run` all need to know about each other.

`roster` says who is missing or came twice, `differences` who has another value than the others, `network` what this host's interfaces,
routes and ports are and whether another host answers, `links` whether a host or a link is to blame for connections that fail, `tasks`
keeps what may block in a thread of its own.
"""
