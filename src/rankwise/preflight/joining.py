"""A host that joins a check: finds the host that leads it, or says how each try ended; then runs its commands until the report comes."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from rankwise.meet.ports import connect
from rankwise.preflight.meeting_listener import NUM_PORTS
from rankwise.preflight.members import Agent
from rankwise.preflight.wire import GREETING, ConnectionLost, Message, receive_exactly, receive_message, send_message

_CONNECT_S = 3.5
_GREET_S = 4.0
_PAUSE_S = 0.3


@dataclass
class Search:
    """How the search went: by port, the last try; `sock` where the meeting was found; `refusal` where it refused this host."""

    tries: dict[str, str] = field(default_factory=dict)
    sock: socket.socket | None = None
    refusal: str = ""


def find_meeting(addresses: list[str], port: int, hello: Message, deadline: float, say: Callable[[str], None]) -> Search:
    """Try the rendezvous port and the ones next to it, again and again, until the meeting is found or the time is over."""
    search = Search()
    started = time.monotonic()
    hello = {**hello, "since": started}
    while True:
        for address, candidate in _places(addresses, port):
            search.sock, how, answer = _try(address, candidate, port, {**hello, "tries": search.tries}, deadline)
            search.tries[str(candidate)] = how
            search.refusal = str(answer.get("refusal", ""))[:300]
            if search.sock is not None or search.refusal or time.monotonic() > deadline:
                return search
        say(f"waiting for the host of the meeting, {time.monotonic() - started:.0f} s")
        time.sleep(_PAUSE_S)


def is_led(addresses: list[str], port: int, hello: Message) -> bool:
    """Whether a meeting of this job is already led from one of these addresses."""
    question = {**hello, "tries": {}, "is_question": True, "since": time.monotonic()}
    return any(_try(*place, place[1], question, time.monotonic() + 1.0)[2].get("is_led") for place in _places(addresses, port))


def _places(addresses: list[str], port: int) -> list[tuple[str, int]]:
    return [(address, candidate) for address in addresses for candidate in range(port, min(port + NUM_PORTS, 65536))]


def attend(sock: socket.socket, agent: Agent, say: Callable[[str], None]) -> Message:
    """Run the leading host's commands until the report comes; raises ConnectionLost where the meeting breaks off."""
    with sock:
        while True:
            left = agent.here.seconds_left()
            if left <= 0:
                raise ConnectionLost("the time limit is over")
            message = receive_message(sock, left)
            if "report" in message:
                report = message["report"]
                if not isinstance(report, dict):
                    raise ConnectionLost("what came was not a report")
                return report
            if "progress" in message:
                say(str(message["progress"])[:200])
                continue
            send_message(sock, agent.do(message), 10.0)


def _try(address: str, candidate: int, first: int, hello: Message, deadline: float) -> tuple[socket.socket | None, str, Message]:
    """Try one port once: the connection if the meeting accepted it, how the try went, and the answer."""
    left = deadline - time.monotonic()
    sock, how = _greeted(address, candidate, max(0.5, min(_CONNECT_S, left)))
    if sock is None:
        return None, how, {}
    tries = {**hello["tries"], str(candidate): "met"}
    if candidate != first:
        # The meeting may have been opened between our try at the rendezvous port and this one, so the rendezvous port is tried again.
        again, tries[str(first)] = _greeted(address, first, _CONNECT_S)
        if again is not None:
            again.close()
    try:
        sock.sendall(GREETING)
        send_message(sock, {**hello, "tries": tries, "searched_s": time.monotonic() - float(hello["since"])}, _GREET_S)
        answer = receive_message(sock, _GREET_S)
    except (ConnectionLost, OSError) as error:
        sock.close()
        return None, str(error)[:100], {}
    if answer.get("in"):
        return sock, "met", answer
    sock.close()
    return None, "met", answer


def _greeted(address: str, port: int, timeout_s: float) -> tuple[socket.socket | None, str]:
    """A connection to another `rankwise check`; otherwise None and what happened."""
    sock, how = connect(address, port, timeout_s, small=True)
    if sock is None:
        return None, how
    try:
        if receive_exactly(sock, len(GREETING), time.monotonic() + _GREET_S) == GREETING:
            return sock, "met"
    except ConnectionLost:
        pass
    sock.close()
    return None, "foreign"
