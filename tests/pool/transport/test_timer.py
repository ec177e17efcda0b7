"""The timer of the listener."""

from __future__ import annotations

import errno
import os
import resource

import pytest

from rankwise.pool.transport.timer import Timer


def test_without_a_free_file_it_says_what_is_short() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
    try:
        with pytest.raises(OSError) as raised:
            Timer()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert raised.value.errno == errno.EMFILE
