"""large packets between hosts

Packets as large as the interface allows, marked "do not fragment", on every link. A path that swallows them lets connections open and
short messages pass, and hangs with the first tensor.

Fails with RW608, and says how much the path carries.
"""

from __future__ import annotations

from rankwise.preflight.job import Job, Seen
from rankwise.preflight.measured import has_swallowed, pair_text, seeing_links, sort_links

GROUP = "links"
_HEADERS = 28  # IPv4 and UDP; IPv6 has 20 more, and a larger allowance is only safer


def judge(job: Job) -> Seen:
    seen = Seen()
    links = seeing_links(job, "largest", seen, "UDP does not get through")
    for link in links:
        seen.values[pair_text(link)] = f"{link.facts['largest'] + _HEADERS} of {link.facts['wanted'] + _HEADERS} bytes"
    found = sort_links(links, has_swallowed)
    if found.bad:
        worst = min(found.bad, key=lambda link: link.facts["largest"])
        fits = worst.facts["largest"] + _HEADERS
        summary = (
            f"packets above {fits} bytes vanish on {found.blame.text()}, where the interface allows {worst.facts['wanted'] + _HEADERS}"
        )
        steps = (f"ip link set IFACE mtu {fits} on every host",)
        seen.add("RW608", summary, job.named(found.blame.hosts()), why=found.blame.why(), next=steps)
    return seen
