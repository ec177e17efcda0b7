"""Control messages between processes, of which either may be gone at any moment."""

from __future__ import annotations

from rankwise.pool.transport.connection import Receiver, pair, send


def test_what_was_said_before_the_end_still_counts_and_the_end_is_no_error() -> None:
    ours, theirs = pair()
    with ours, theirs:
        send(ours, ("run", 1))
        send(theirs, ("done", 2))
        theirs.close()  # without having read what came
        receiver = Receiver(ours)

        assert [receiver.receive(wait=True), receiver.receive(wait=True)] == [("done", 2), None]
