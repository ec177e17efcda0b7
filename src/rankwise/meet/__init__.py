"""How ranks and hosts find each other: the part that `session`, `check` and `run` share.

`roster` finds ranks that are missing or came twice, `differences` those whose value differs from the others'. `network` reads this host's
names, routes and interfaces, `ports` connects to ports, `links` finds the host or link to blame for failed connections, and `threads` runs
work that may block in threads.
"""
