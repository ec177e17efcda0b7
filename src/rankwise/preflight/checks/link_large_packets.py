"""large packets between hosts

Packets as large as the interface allows, marked "do not fragment", on every link. A path that swallows them lets connections open and
short messages pass, and hangs with the first tensor.

Fails with RW608, and says how much the path carries.
"""

from __future__ import annotations

from rankwise.preflight.facts import CheckedJob, Facts, Seen
from rankwise.preflight.measured import find_bad_links, has_swallowed

GROUP = "links"
_HEADERS = 28  # IPv4 and UDP; IPv6 has 20 more, and a larger allowance is only safer


def judge(job: CheckedJob, seen: Seen) -> None:
    bad, blame = find_bad_links(job, seen, "largest", "UDP does not get through", _text, has_swallowed)
    if bad:
        worst = min(bad, key=lambda facts: facts["largest"])
        fits, allowed = worst["largest"] + _HEADERS, worst["wanted"] + _HEADERS
        summary = f"packets above {fits} bytes vanish on {blame.text()}, where the interface allows {allowed}"
        steps = (f"ip link set IFACE mtu {fits} on every host",)
        seen.add("RW608", summary, job.named(blame.hosts()), why=blame.why(), next=steps)


def _text(facts: Facts) -> str:
    return f"{facts['largest'] + _HEADERS} of {facts['wanted'] + _HEADERS} bytes"
