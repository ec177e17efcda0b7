"""Training helpers: a start-up that says what failed, and what is built on the job it returns."""
