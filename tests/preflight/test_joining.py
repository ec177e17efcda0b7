"""A host that looks for the meeting: where it is, who is in the way, and what it is asked there."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from rankwise.preflight import joining
from rankwise.preflight.joining import attend, find_meeting, is_led
from rankwise.preflight.meeting_listener import NUM_PORTS, MeetingListener
from rankwise.preflight.wire import ConnectionLost, Message, receive_message, send_message
from tests.ports import free_port

HERE = ["127.0.0.1"]


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "_PAUSE_S", 0.01)
    monkeypatch.setattr(joining, "_GREET_S", 2.0)


@pytest.fixture
def lead() -> Iterator[Callable[..., int]]:
    """`lead(greet)`: a meeting; its port."""
    listeners: list[MeetingListener] = []

    def begin(greet: Callable[[Message, str], Message | None], port: int = 0) -> int:
        port = port or free_port()
        listeners.append(MeetingListener(HERE, port, greet))
        return port

    yield begin
    for listener in listeners:
        listener.close()
        for remote in listener.hosts():
            remote.leave()


def search(port: int, seconds: float = 20.0) -> joining.Search:
    return find_meeting(HERE, port, {"name": "node-b", "told": {}}, time.monotonic() + seconds, lambda said: None)


def test_the_meeting_is_found_and_hears_who_comes(lead: Callable[..., int]) -> None:
    heard: list[Message] = []
    port = lead(lambda hello, address: heard.append(hello))  # type: ignore[func-returns-value]

    found = search(port)

    assert found.sock is not None and found.tries == {str(port): "met"} and not found.refusal
    assert heard[0]["name"] == "node-b" and heard[0]["tries"] == {str(port): "met"}
    found.sock.close()


def test_where_another_program_holds_the_port_the_next_one_serves(lead: Callable[..., int]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]

        def hang_up() -> None:
            while True:
                try:
                    other.accept()[0].close()
                except OSError:
                    return

        threading.Thread(target=hang_up, daemon=True).start()
        heard: list[Message] = []
        lead(lambda hello, address: heard.append(hello), port)  # type: ignore[func-returns-value]
        found = search(port)
        other.shutdown(socket.SHUT_RDWR)

    assert found.sock is not None and found.tries == {str(port): "foreign", str(port + 1): "met"}
    assert heard[0]["tries"] == found.tries, "it can tell what is in the way there"
    found.sock.close()


def test_a_refusal_ends_the_search(lead: Callable[..., int]) -> None:
    began = time.monotonic()
    found = search(lead(lambda hello, address: {"refusal": "this is another job" + "!" * 1000}))

    assert time.monotonic() - began < 15
    assert found.sock is None and found.refusal.startswith("this is another job") and len(found.refusal) == 300


def test_where_nobody_is_each_port_is_tried_until_the_time_is_over() -> None:
    port, said = free_port(), list[str]()

    found = find_meeting(HERE, port, {}, time.monotonic() + 0.1, said.append)

    assert found.sock is None and said[0].startswith("waiting for the host of the meeting")
    assert list(found.tries) == [str(port + number) for number in range(NUM_PORTS)] and "met" not in found.tries.values()


def test_whether_somebody_leads_can_be_asked_without_joining(lead: Callable[..., int]) -> None:
    asked: list[Any] = []

    def greet(hello: Message, address: str) -> Message | None:
        asked.append(hello["is_question"])
        return {"is_led": True}

    assert is_led(HERE, lead(greet), {"name": "node-b"}) and asked == [True]
    assert not is_led(HERE, free_port(), {"name": "node-b"})


class Agent:
    def __init__(self, seconds: float = 20.0) -> None:
        self.here = SimpleNamespace(seconds_left=lambda: seconds)

    def do(self, message: Message) -> Message:
        return {"did": message["do"]}


def at_meeting(agent: Agent, *messages: Message) -> tuple[list[Message], list[str], Any]:
    """What the host answered, what it showed, and what it came to."""
    ours, theirs = socket.socketpair()
    answers: list[Message] = []

    def ask() -> None:
        with theirs:
            for message in messages:
                send_message(theirs, message, 5.0)
                if "do" in message:
                    answers.append(receive_message(theirs, 5.0))

    asking, said = threading.Thread(target=ask), list[str]()
    asking.start()
    try:
        report: Any = attend(ours, agent, said.append)  # type: ignore[arg-type]
    except ConnectionLost as error:
        report = str(error)
    asking.join()
    return answers, said, report


def test_a_host_does_what_it_is_asked_until_the_report_comes() -> None:
    progress = {"progress": "links, 2 of 3" + "." * 300}

    answers, said, report = at_meeting(Agent(), {"do": "look"}, progress, {"do": "send"}, {"report": {"outcome": "pass"}})

    assert answers == [{"did": "look"}, {"did": "send"}] and report == {"outcome": "pass"}
    assert len(said) == 1 and said[0].startswith("links, 2 of 3") and len(said[0]) == 200


@pytest.mark.parametrize(
    ("agent", "messages", "why"),
    [(Agent(0.0), (), "the time limit is over"), (Agent(), ({"report": [1]},), "not a report"), (Agent(), ({"do": "look"},), "")],
)
def test_a_meeting_that_breaks_off_is_told(agent: Agent, messages: tuple[Message, ...], why: str) -> None:
    _, _, report = at_meeting(agent, *messages)

    assert isinstance(report, str) and why in report
