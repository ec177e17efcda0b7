"""The command line: one file per command, and the only room that reads argv, prints or exits.

Begin with `main`, which finds the command. Each command's file has `add_options` and `main`; `options` holds what they share: parsers whose
errors are findings, and the width and colour of the terminal. `telling` reports what `run` has found, `logs` is the log of `serve` and
`worker`, and `tour/` has the scripts of `rankwise demo`.
"""
