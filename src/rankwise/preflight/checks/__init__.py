"""One check per file, found by listing this folder; each file's docstring is the check's page, and its first line the title.

`GROUP` says where it belongs, `look(here)` gathers facts on one host (plain data that travels as JSON), `judge(job, seen)` notes in
`seen` what the facts of all hosts show and what is wrong. A look touches the host, a judge touches nothing.
"""
