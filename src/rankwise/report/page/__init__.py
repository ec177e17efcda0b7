"""The parts of report.html: each file draws one section from a `ReportedJob`; `markup` is the only way to make a tag, and it escapes.

No part decides what happened, none uses JavaScript or inline styles (the page's own security policy forbids both).
"""
