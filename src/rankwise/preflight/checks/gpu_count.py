"""GPUs for the ranks

Does each rank of this host find a GPU of its own? Counted as torch sees them, after `CUDA_VISIBLE_DEVICES`; and the same kind on every host?

Fails with RW122 where there are fewer than ranks, or where one host has none while others have; warns where torch is built without CUDA
although there are GPUs, and where the kinds differ.
"""

from __future__ import annotations

from rankwise.preflight.facts import CheckedJob, Facts, Here, Host, Seen, seeing_hosts

GROUP = "gpus"


def look(here: Here) -> Facts:
    driver, torch = here.gpus, here.torch.facts(here.patience_s())
    return {
        "present": len(driver.get("gpus", ())),
        "names": sorted(gpu["name"] for gpu in driver.get("gpus", ())),
        "why_none": str(driver.get("blind", "")),
        "seen_by_torch": int(torch.get("gpus", 0)),
        "cuda_build": bool(torch.get("cuda")),
        "error": str(torch.get("cuda_error", "") or torch.get("error", "")),
        "visible": here.environ.get("CUDA_VISIBLE_DEVICES"),
        "ranks": here.ranks,
    }


def judge(job: CheckedJob, seen: Seen) -> None:
    found = list(seeing_hosts(job, "gpu-count", seen))
    if not any(facts["present"] or facts["seen_by_torch"] for _, facts in found):
        all_facts = {host.name: host.of("gpu-count") for host in job.hosts}
        seen.blind = {name: str(facts.get("blind") or facts["why_none"] or "no GPU") for name, facts in all_facts.items()}
        return
    for host, facts in found:
        kind = f" × {facts['names'][0]}" if facts["names"] else ""
        seen.values[host.name] = f"{facts['seen_by_torch']}{kind} for {facts['ranks']} rank{'s' * (facts['ranks'] != 1)}"
        _find_too_few(host, facts, seen)
    kinds = {host.name: ", ".join(dict.fromkeys(facts["names"])) for host, facts in found if facts["names"]}
    seen.add_difference("RW623", "the kind of GPU", kinds, job)


def _find_too_few(host: Host, facts: Facts, seen: Seen) -> None:
    usable, ranks = facts["seen_by_torch"], facts["ranks"]
    if usable >= ranks:
        return
    reasons = [
        f"{facts['present']} are in the machine" if facts["present"] != usable else "",
        "torch is built without CUDA" if not facts["cuda_build"] else "",
        f"CUDA_VISIBLE_DEVICES={facts['visible']}" if facts["visible"] is not None else "",
        facts["error"] or facts["why_none"],
    ]
    is_plain_cpu_job = not facts["cuda_build"] and facts["present"] > 0
    summary = f"{host.name} has {usable} usable GPU{'s' * (usable != 1)} for {ranks} rank{'s' * (ranks != 1)}"
    seen.add("RW122", summary, host, severity="warning" if is_plain_cpu_job else "error", why="; ".join(filter(None, reasons)))
