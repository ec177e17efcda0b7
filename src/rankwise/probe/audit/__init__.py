"""Records what training does, so that the launcher can compare the ranks: samples, gradients, weights, files, and where the time goes.

Everything here only looks. It draws no random number, makes no collective, holds no tensor of the user's, and looks at few steps: the same
ones on every rank, because their numbers decide which. `RANKWISE_AUDIT` is off, light or full.
"""
