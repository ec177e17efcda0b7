"""peer access between GPUs

Can the GPUs of this host read each other's memory? Where they cannot, NCCL copies through the host's memory, which is several times slower.

Warns with RW634.
"""

from __future__ import annotations

from rankwise.preflight.facts import CheckedJob, Facts, Here, Seen, seeing_hosts

GROUP = "gpus"


def look(here: Here) -> Facts:
    torch = here.torch.facts(here.patience_s())
    if "error" in torch:
        return {"blind": str(torch["error"])}
    if torch.get("gpus", 0) < 2:
        return {"blind": f"{torch.get('gpus', 0) or 'no'} GPU that torch can use: there is no pair"}
    return {"gpus": torch["gpus"], "blocked": torch.get("no_peer_access", [])}


def judge(job: CheckedJob, seen: Seen) -> None:
    for host, facts in seeing_hosts(job, "gpu-peers", seen):
        pairs = facts["gpus"] * (facts["gpus"] - 1)
        blocked = facts["blocked"]
        seen.values[host.name] = f"{pairs - len(blocked)} of {pairs} pairs"
        if blocked:
            shown = ", ".join(f"{a}→{b}" for a, b in blocked[:6])
            seen.add("RW634", f"GPUs of {host.name} cannot read each other's memory: {shown}{' …' * (len(blocked) > 6)}", host)
