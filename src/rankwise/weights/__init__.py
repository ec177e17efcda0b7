"""Weights: any checkpoint in, a plain model out; nothing in a checkpoint is ever executed.

Begin with `loading`. `checkpoint` finds out what a file is and reads it into records, `state_dicts` finds the weights among them,
`matching` and `choosing` decide which tensor belongs to which name, `filling` fills the model; `inspecting` and `converting` are for the
command line. Reading alone needs no torch, so nothing here is imported before it is used.
"""
