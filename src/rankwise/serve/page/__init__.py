"""The page at `/`: models, workers and the latest errors, and a form per model to try it. It loads nothing from other servers.

Begin with `index.html` and `page.js`; `routes` answers their requests, and `recent` keeps the latest errors for them.
"""
