"""The page at `/`: models, workers and the latest errors, and a form per model to try it. It loads nothing from other servers.

Begin with `index.html` and `page.js`; `files` answers their requests, and `findings` keeps the latest errors for them.
"""
