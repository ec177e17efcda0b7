"""high ports between hosts

gloo and NCCL let the system pick a port on every rank and tell it to the others. Here every host opens such a port and all others
try it. The usual trap is a firewall that lets the rendezvous port through and nothing else.

Fails with RW114.
"""

from __future__ import annotations

from rankwise.meet.links import blame
from rankwise.preflight.facts import CheckedJob, Seen

GROUP = "ports"


def judge(job: CheckedJob, seen: Seen) -> None:
    if len(job.hosts) < 2:
        seen.blind[""] = "there is no other host to try it from"
        return
    bad: list[tuple[str, str]] = []
    good: list[tuple[str, str]] = []
    hows: dict[tuple[str, str], str] = {}
    for host in job.hosts:
        answers = job.reached.get(host.name)
        if answers is None:
            seen.blind[host.name] = "it did not answer"
            continue
        reached = [name for name, how in answers.items() if how["high"]]
        seen.values[host.name] = f"reaches {len(reached)} of {len(answers)}"
        for name, how in answers.items():
            pair = (min(host.name, name), max(host.name, name))
            (good if how["high"] else bad).append(pair)
            if not how["high"]:
                hows[pair] = f"{host.name} → {name}: {how.get('how', 'no answer')}"
    guilty = blame(bad, [pair for pair in good if pair not in bad])
    if bad:
        seen.add(
            "RW114",
            f"ports that the system picks are not reachable on {guilty.text()}",
            job.named(guilty.hosts()),
            why=f"{next(iter(hows.values()))}; the hosts did meet at another port, so a firewall lets that one through and not the rest",
            next=("let all TCP ports (or net.ipv4.ip_local_port_range) through between the hosts of the job",),
        )
