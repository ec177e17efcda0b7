"""Whose code a frame is: the user's, or that of Python, an installed package, or rankwise itself."""

from __future__ import annotations

import pytest

import rankwise
from rankwise.evidence.frames import is_user_file


@pytest.mark.parametrize("file", ["train.py", "/home/me/rankwise-runs/train.py", "<string>"])
def test_the_users_own(file: str) -> None:
    assert is_user_file(file)


@pytest.mark.parametrize("file", ["/usr/lib/python3.12/socket.py", "/v/site-packages/torch/nn/x.py", rankwise.__file__])
def test_what_is_not(file: str) -> None:
    assert not is_user_file(file)
