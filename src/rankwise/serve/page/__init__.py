"""The page at `/`: what is served and how it fares, and a form per model to try it. Nothing is loaded from elsewhere."""
