"""Records what training does, so that the launcher can compare the ranks: samples, gradients, weights, files, and where the time goes.

Everything here only reads. It draws no random number, makes no collective, holds no tensor of the user's, and looks at few steps. A step's
number decides whether it is looked at, so all ranks look at the same ones. `RANKWISE_AUDIT` is off, light or full.
"""
