"""A host that goes to the meeting: finds its door, or says how each try ended; then does what it is asked until it gets the report."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rankwise.preflight.agent import Agent
from rankwise.preflight.door import DOORS
from rankwise.preflight.wire import GREETING, Gone, Message, connect, receive_exactly, receive_message, send_message

_CONNECT_S = 3.5
_GREET_S = 4.0
_PAUSE_S = 0.3
_MOST_SIGNPOSTS = 2


@dataclass
class Search:
    """How the search for the door went: by port, the last try; `sock` where it was found; `refusal` where it was shut on purpose."""

    tries: dict[str, str] = field(default_factory=dict)
    sock: socket.socket | None = None
    refusal: str = ""


def find_meeting(addresses: list[str], port: int, hello: Message, deadline: float, say: Callable[[str], None]) -> Search:
    """Try the rendezvous port and the doors next to it, again and again, until one opens or the time is over."""
    search = Search()
    started = time.monotonic()
    hello = dict(hello)
    places = [(address, port, True) for address in addresses]
    signposts = 0
    while not search.refusal:
        for address, first, is_told in list(places):
            for door in range(first, min(first + DOORS, 65536)):
                sock, how, answer = _try(address, door, {**hello, "tries": search.tries}, deadline)
                if is_told:
                    search.tries[str(door)] = how
                if sock is not None:
                    search.sock = sock
                    return search
                if "refusal" in answer:
                    search.refusal = str(answer["refusal"])[:300]
                    return search
                if "elsewhere" in answer and signposts < _MOST_SIGNPOSTS:
                    signposts += 1
                    places += _places_of(answer["elsewhere"])
                if time.monotonic() > deadline:
                    return search
        say(f"waiting for the host of the meeting, {time.monotonic() - started:.0f} s")
        time.sleep(_PAUSE_S)
    return search


def is_led(addresses: list[str], port: int, hello: Message) -> bool:
    """Whether a meeting of this job is already led from one of these addresses."""
    question = {**hello, "tries": {}, "is_question": True}
    doors = [(address, door) for address in addresses for door in range(port, min(port + DOORS, 65536))]
    return any(_try(address, door, question, time.monotonic() + 1.0)[2].get("is_led") for address, door in doors)


def attend(sock: socket.socket, agent: Agent, say: Callable[[str], None]) -> Message:
    """Do what is asked until the report comes; raises Gone where the meeting breaks off."""
    with sock:
        while True:
            left = agent.here.seconds_left()
            if left <= 0:
                raise Gone("the time limit is over")
            message = receive_message(sock, left)
            if "report" in message:
                report = message["report"]
                if not isinstance(report, dict):
                    raise Gone("what came was no report")
                return report
            if "progress" in message:
                say(str(message["progress"])[:200])
                continue
            send_message(sock, agent.do(message), 10.0)


def _try(address: str, port: int, hello: Message, deadline: float) -> tuple[socket.socket | None, str, Message]:
    left = deadline - time.monotonic()
    sock, how = connect(address, port, max(0.5, min(_CONNECT_S, left)), small=True)
    if sock is None:
        return None, how, {}
    try:
        if receive_exactly(sock, len(GREETING), time.monotonic() + _GREET_S) != GREETING:
            raise Gone("not one of us")
        sock.sendall(GREETING)
        send_message(sock, {**hello, "tries": {**hello["tries"], str(port): "met"}}, _GREET_S)
        answer = receive_message(sock, _GREET_S)
    except (Gone, OSError) as error:
        sock.close()
        is_foreign = "not one of us" in str(error) or "closed" in str(error) or "in time" in str(error)
        return None, "foreign" if is_foreign else str(error)[:100], {}
    if answer.get("in"):
        return sock, "met", answer
    with contextlib.suppress(OSError):
        sock.close()
    return None, "met" if "refusal" in answer else "another host of the job", answer


def _places_of(elsewhere: Any) -> list[tuple[str, int, bool]]:
    if not isinstance(elsewhere, dict) or not isinstance(elsewhere.get("addresses"), list):
        return []
    port = elsewhere.get("port")
    return [(str(address), port, False) for address in elsewhere["addresses"][:4] if isinstance(port, int) and 0 < port < 65536]
