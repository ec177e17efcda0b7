"""Findings and evidence to something a person or a program reads; the only room that knows colour.

`terminal` is the four-line form, `verdict` is verdict.json, `html` is report.html (its parts live in `page/`). `places` groups ranks into
`where` lines for all of them; `wording` makes any string safe and short enough to show. Nothing here decides what happened.
"""
