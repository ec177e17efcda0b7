"""One check per file, found by listing this folder; the doc block of each is its page, the first line its title.

`GROUP` says where it belongs, `look(here)` gathers facts on one host (plain data that travels as JSON), `judge(job)` turns the facts of
all hosts into what was seen and what is wrong. A look touches the host, a judge touches nothing.
"""
