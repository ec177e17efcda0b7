"""Judges the infos of all ranks: is a rank missing, or there twice, or different? Pure: infos in, findings out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rankwise.findings import Finding, Place, ranks_text
from rankwise.meet.differences import find_difference
from rankwise.meet.network import is_loopback
from rankwise.meet.roster import claimed_twice, missing_numbers, waiting_text, with_host
from rankwise.train.errors import start_finding
from rankwise.train.rank_info import RankInfo

# These name things of one host, or only change what is logged, so they may differ.
_OWN_SETTINGS = {"NCCL_HOSTID", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_TOPO_FILE", "NCCL_TOPO_DUMP_FILE"}
_LOG_SETTINGS = ("NCCL_DEBUG", "TORCH_NCCL_DEBUG_INFO", "TORCH_NCCL_TRACE")


def find_contradiction(infos: list[RankInfo]) -> Finding | None:
    """A finding that no rank still to come could put right, so it counts before all ranks are here."""
    problem = next((Finding.from_dict(info.problem) for info in infos if info.problem), None)
    return problem or _claimed_twice(infos) or _different_world_sizes(infos) or _different_backends(infos)


def find_missing(infos: list[RankInfo], world_size: int, waited_s: float, place: str) -> Finding:
    """A finding about the ranks that have not come in time."""
    missing = missing_numbers({info.rank for info in infos}, world_size)
    hosts, num_here = {rank: likely_host(rank, infos) for rank in missing}, world_size - len(missing)
    return start_finding(
        "RW101",
        f"{with_host(missing, hosts)} never registered at {place}: {num_here} of {world_size} ranks did within {waited_s:.0f} s",
        (Place(rank=rank, host=hosts[rank]) for rank in missing),
        why=f"registered are {roll_text(infos)}; whoever is missing was not started, ended before, or cannot reach {place} from its host",
        next=("read the missing rank's own output: it names what it could not reach, or how it ended",),
    )


def find_device_problem(infos: list[RankInfo]) -> Finding | None:
    """A finding about two ranks on one GPU: NCCL refuses that, and the two would share its memory."""
    by_gpu: dict[str, list[RankInfo]] = {}
    for info in infos:
        if info.gpu:
            by_gpu.setdefault(info.gpu, []).append(info)
    for gpu, sharing in by_gpu.items():
        hostids = {info.settings.get("NCCL_HOSTID", "") for info in sharing}
        if len(sharing) < 2 or (len(hostids) == len(sharing) and "" not in hostids):  # on purpose, see NCCL_HOSTID
            continue
        used = ", ".join(f"rank {info.rank} uses {info.device}" for info in sharing[:8])
        summary = f"{ranks_text([info.rank for info in sharing])} on {sharing[0].host} claim the same GPU ({gpu}): {used}"
        why = "the device comes from LOCAL_RANK, which is the same for these ranks, or CUDA_VISIBLE_DEVICES shows them one GPU"
        return start_finding("RW121", summary, (info.place for info in sharing), why=why)
    return None


def find_unreachable_address(infos: list[RankInfo]) -> Finding | None:
    """A finding about a rank that would tell ranks of other hosts to connect to its own loopback."""
    hosts = {info.host for info in infos}
    on_loopback = [info for info in infos if is_loopback(info.address) and not info.uses_nccl]
    lost = [info for info in on_loopback if any(other.host != info.host and other.dials(info) for other in infos)]
    if len(hosts) < 2 or not lost:
        return None
    first, ranks = lost[0], ranks_text([info.rank for info in lost])
    return start_finding(
        "RW114",
        f"{ranks} on {first.host} would be reached at {first.address}, which on every other host is that host itself",
        (info.place for info in lost),
        why=f"without GLOO_SOCKET_IFNAME gloo offers the address that the name {first.host} resolves to there; "
        f"towards the store that host uses {first.route or 'another one'}",
        next=(f"on {first.host}, use the interface with {first.route}: ip -br addr",) if first.route else (),
    )


def find_differences(infos: list[RankInfo]) -> list[Finding]:
    """Versions and settings that are not the same everywhere; an error if the ranks could not understand each other."""
    found = []
    for what in sorted({name for info in infos for name in info.versions}):
        versions = [info.versions.get(what, "none") for info in infos]
        # Releases of torch and NCCL that differ in more than the last number speak different protocols.
        breaks = what in ("torch", "nccl") and len({tuple(v.split(".")[:2]) for v in versions}) > 1
        severity = "error" if breaks else "warning"
        found.append(_different("RW123", f"{what} is not the same on all ranks", infos, versions, severity=severity))
    names = {name for info in infos for name in info.settings if name not in _OWN_SETTINGS and not name.startswith(_LOG_SETTINGS)}
    for name in sorted(names):
        values = [info.settings.get(name, "(not set)") for info in infos]
        found.append(_different("RW125", f"{name} is not the same on all ranks", infos, values))
    return [finding for finding in found if finding is not None]


def roll_text(infos: Iterable[RankInfo]) -> str:
    """`ranks 0, 1 on node-a and rank 3 on node-b`."""
    by_host: dict[str, list[int]] = {}
    for info in infos:
        by_host.setdefault(info.host, []).append(info.rank)
    parts = [f"{ranks_text(ranks)} on {host}" for host, ranks in sorted(by_host.items(), key=lambda item: min(item[1]))]
    shown = parts[:8] + ([f"{len(parts) - 8} more hosts"] if len(parts) > 8 else [])
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown) or "none"


def registered_text(infos: list[RankInfo], world_size: int, waited_s: float) -> str:
    """`3 of 4 ranks registered, waiting for rank 2 on node-b, 14 s`."""
    missing = missing_numbers({info.rank for info in infos}, world_size)
    return waiting_text(missing, {rank: likely_host(rank, infos) for rank in missing}, world_size, waited_s)


def likely_host(rank: int, infos: list[RankInfo]) -> str | None:
    """The host of a missing rank, judged by its neighbours, because launchers number a host's ranks in a row; None if they do not tell."""
    if any(info.local_rank is None for info in infos):
        return None
    by_rank = {info.rank: info for info in infos}
    before, after = by_rank.get(rank - 1), by_rank.get(rank + 1)
    if after is not None and after.local_rank:
        return after.host
    if before is not None and after is not None and before.host == after.host:
        return before.host
    return None


def _claimed_twice(infos: list[RankInfo]) -> Finding | None:
    for rank, claimants in claimed_twice((info.rank, info) for info in infos).items():
        who = " and ".join(f"pid {info.pid} on {info.host}" for info in claimants)
        why = "RANK must be unique over all hosts; with one rank given twice another is given to nobody"
        return start_finding("RW102", f"{len(claimants)} processes are rank {rank}: {who}", (info.place for info in claimants), why=why)
    return None


def _different_world_sizes(infos: list[RankInfo]) -> Finding | None:
    if beyond := [info for info in infos if info.rank >= info.world_size]:
        first, size = beyond[0], beyond[0].world_size
        summary = f"rank {first.rank} on {first.host} is outside its world: WORLD_SIZE={size} has ranks 0 to {size - 1}"
        return start_finding("RW112", summary, (info.place for info in beyond))
    why = "each rank waits for as many ranks as its own WORLD_SIZE says"
    said = "ranks disagree about the world size"
    return _different("RW112", said, infos, [info.world_size for info in infos], prefix="WORLD_SIZE=", why=why)


def _different_backends(infos: list[RankInfo]) -> Finding | None:
    why = "session() takes NCCL where it sees a GPU and gloo where it sees none; backend= sets one for all"
    return _different("RW113", "ranks use different backends", infos, [info.backend for info in infos], why=why)


def _different(code: str, said: str, infos: list[RankInfo], values: Sequence[object], prefix: str = "", **details: Any) -> Finding | None:
    """The finding about ranks whose value differs from most; None if all have the same."""
    differs = find_difference({info.rank: value for info, value in zip(infos, values, strict=True)})
    if differs is None:
        return None
    return start_finding(code, f"{said}: {differs.text(prefix)}", (info.place for info in infos if info.rank in differs.odd), **details)
