"""The checkpoints that the tests of `weights` made."""

from tests.weights.conftest import corpus

__all__ = ["corpus"]
