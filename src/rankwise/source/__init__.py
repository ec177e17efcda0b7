"""The only reader of the user's code: which conditions depend on the rank, what guards a line, where a value comes from.

Begin with `book`: `SourceBook` answers questions about a line of a job from the files it ran. `tree` walks the AST, `bindings` and `names`
follow values to where they were made, `guards` finds the conditions and loops around a line, and `rank_words`, `rank_expressions` and
`rank_conditions` find the ranks for which a condition is true. Nothing here runs the user's code.
"""
