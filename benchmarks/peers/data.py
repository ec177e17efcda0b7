"""What the four trainings have in common, and is not counted: the data and the model."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset


def digits() -> tuple[TensorDataset, TensorDataset]:
    """1,797 pictures of 8 × 8 pixels; every fifth is kept for testing."""
    pixels, y = map(torch.tensor, load_digits(return_X_y=True))
    x = pixels.float().view(-1, 1, 8, 8) / 16
    test = torch.arange(len(y)) % 5 == 0
    return TensorDataset(x[~test], y[~test]), TensorDataset(x[test], y[test])


def small_cnn() -> nn.Module:
    layers = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(32 * 4 * 4, 10))
