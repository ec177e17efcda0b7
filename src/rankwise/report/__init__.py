"""Findings and evidence as text, JSON and HTML; the only room that knows colour.

`finding_text` writes a finding in four lines, `verdict` verdict.json, `html` report.html (its parts are in `page/`), `checks` the report of
`check`. `places` makes the `where` lines; `safe_text` makes any string safe and short enough to show. Nothing here decides what happened.
"""
