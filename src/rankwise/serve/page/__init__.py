"""The page at `/`: models, workers and the latest errors, and a form per model to try it. It loads nothing from other servers."""
