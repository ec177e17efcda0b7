"""The client by itself: what becomes of it in a forked child."""

from __future__ import annotations

import os
import signal
import uuid

import numpy as np

from rankwise.broker.client import Remote
from rankwise.pool.errors import PoolClosed


def test_a_forked_child_is_told_that_the_client_is_its_parents() -> None:
    x = np.ones((2, 3), np.float32)
    with Remote("memory://", queue=uuid.uuid4().hex) as client:
        future = client.submit("m", x)
        with client._lock, client._sending:  # as threads that send and read may
            child = os.fork()
        if child == 0:
            signal.alarm(10)
            told = 0
            try:
                for ask in (future.result, lambda: client.submit("m", x).result()):
                    try:
                        ask()
                    except PoolClosed as error:
                        told += "another process" in str(error)
                client.close()
            finally:
                os._exit(told)

        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
        assert not future.done() and client._connection is not None
