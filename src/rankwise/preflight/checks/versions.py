"""versions

Python, torch, the CUDA torch was built for, the driver, NCCL and its network plugin (`libnccl-net`), gloo: the same on every host?
Alone on one host: can torch be imported at all?

Fails with RW123 where they differ (the patch level of Python and the driver only warn), with RW624 where torch cannot be imported.
"""

from __future__ import annotations

import ctypes.util
import os
import platform
import re
from importlib import metadata
from pathlib import Path

from rankwise.meet.differences import find_difference
from rankwise.preflight.facts import CheckedJob, Facts, Here, Seen, seeing_hosts

GROUP = "parity"
_TITLES = {
    "python": "Python",
    "torch": "torch",
    "cuda": "torch's CUDA",
    "driver": "the NVIDIA driver",
    "nccl": "NCCL",
    "nccl_net": "NCCL's network plugin (libnccl-net)",
    "gloo": "gloo",
    "rankwise": "rankwise",
}
_MINOR = {"driver", "rankwise"}


def look(here: Here) -> Facts:
    asked = here.torch.facts(here.patience_s())
    return {
        "python": platform.python_version(),
        "torch": str(asked.get("torch") or _installed("torch")),
        "cuda": str(asked.get("cuda", "")) or "none",
        "driver": _driver(),
        "nccl": str(asked.get("nccl", "")) or "none",
        "nccl_net": _nccl_net(here),
        "gloo": "there" if asked.get("gloo") else "none",
        "rankwise": _installed("rankwise"),
        "error": str(asked.get("error", "")),
    }


def judge(job: CheckedJob, seen: Seen) -> None:
    facts_of = {host.name: facts for host, facts in seeing_hosts(job, "versions", seen)}
    for host in job.named(facts_of):
        facts = facts_of[host.name]
        cuda = "" if facts["cuda"] == "none" else f", CUDA {facts['cuda']}, NCCL {facts['nccl']}"
        seen.values[host.name] = f"Python {facts['python']}, torch {facts['torch']}{cuda}"
        if facts["error"]:
            seen.add("RW624", f"torch cannot be imported on {host.name}", host, why=facts["error"])
    broken = {name for name, facts in facts_of.items() if facts["error"]}
    for key, title in _TITLES.items():
        sound = {name: str(facts[key]) for name, facts in facts_of.items() if name not in broken or key in ("python", "driver", "torch")}
        only_patch = key == "python" and len({value.rpartition(".")[0] for value in sound.values()}) == 1
        differs = find_difference(sound)
        why = f"all others have {differs.usual}" if differs and differs.usual is not None else ""
        seen.add_difference("RW123", title, sound, job, severity="warning" if key in _MINOR or only_patch else "error", why=why)


def _installed(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "none"


def _driver() -> str:
    try:
        match = re.search(r"Kernel Module\D*([\d.]+)", Path("/proc/driver/nvidia/version").read_text())
    except OSError:
        return "none"
    return match[1] if match else "unknown"


def _nccl_net(here: Here) -> str:
    """The plugin NCCL would load: named by its variable, or found where the loader looks."""
    plugin = here.environ.get("NCCL_NET_PLUGIN", "")
    name = f"libnccl-net{'-' + plugin if plugin else ''}.so"
    folders = here.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    if any(folder and (Path(folder) / name).exists() for folder in folders):
        return name
    return ctypes.util.find_library("nccl-net") or "none"
