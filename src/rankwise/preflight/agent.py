"""What a host does when the meeting's host asks: tell its facts and its time, knock, measure, take part in a collective."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from rankwise.preflight.here import Here
from rankwise.preflight.job import Facts
from rankwise.preflight.links import knock_at, measure_link
from rankwise.preflight.probes import Probes


class Agent:
    """One host's hands. Commands come from another machine: each is looked up in a table, and what it asks for is bounded."""

    def __init__(self, here: Here, probes: Probes | None, look: Callable[[], dict[str, Facts]]) -> None:
        self.here, self.probes = here, probes
        self._facts: dict[str, Facts] = {}
        self._looking = threading.Thread(target=lambda: self._facts.update(look()), daemon=True, name="look-around")
        self._looking.start()

    def facts(self) -> dict[str, Facts]:
        self._looking.join(max(0.0, self.here.seconds_left()))
        return dict(self._facts)

    def do(self, command: dict[str, Any]) -> dict[str, Any]:
        doing = {"facts": self._tell, "clock": self._clock, "knock": self._knock, "link": self._link, "collective": self._collective}
        action = doing.get(str(command.get("do")))
        if action is None:
            return {"error": f"unknown command {str(command.get('do'))[:40]!r}"}
        try:
            return action(command)
        except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
            return {"error": f"{type(error).__name__}: {error}"[:300]}

    def _tell(self, command: dict[str, Any]) -> dict[str, Any]:
        if self.probes is not None:
            self.probes.token = bytes.fromhex(command["token"])
        offer = self.probes.offer() if self.probes is not None else {}
        return {"facts": self.facts(), "offer": offer, "ranks": self.here.ranks}

    def _clock(self, _: dict[str, Any]) -> dict[str, Any]:
        return {"now": time.time()}

    def _knock(self, command: dict[str, Any]) -> dict[str, Any]:
        return {"answers": knock_at(command["peers"], bytes.fromhex(command["token"]))}

    def _link(self, command: dict[str, Any]) -> dict[str, Any]:
        mtu = int(self._facts.get("interface", {}).get("mtu") or 1500)
        return {"facts": measure_link(command["peer"], bytes.fromhex(command["token"]), mtu)}

    def _collective(self, command: dict[str, Any]) -> dict[str, Any]:
        return self.here.torch.ask(command, min(float(command["limit_s"]) + 10.0, max(1.0, self.here.seconds_left())))
