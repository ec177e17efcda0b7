"""Judges the cards of all ranks: which rank is missing, came twice or differs. Pure: cards in, findings out."""

from __future__ import annotations

from collections.abc import Iterable

from rankwise.causes import load_cause
from rankwise.findings import Finding, Place, ranks_text
from rankwise.meet.differences import find_difference
from rankwise.meet.roster import claimed_twice, missing_numbers, waiting_text, with_host
from rankwise.stages import BACKEND, DEVICES, REGISTRATION
from rankwise.train.cards import Card

_MAX_PLACES = 64
# These name things of one host, or only change what is logged: they may well differ.
_OWN_SETTINGS = {"NCCL_HOSTID", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_TOPO_FILE", "NCCL_TOPO_DUMP_FILE"}
_LOG_SETTINGS = ("NCCL_DEBUG", "TORCH_NCCL_DEBUG_INFO", "TORCH_NCCL_TRACE")


def find_contradiction(cards: list[Card]) -> Finding | None:
    """What can be said before everybody is here: no rank that is still to come could put it right."""
    return _brought_along(cards) or _claimed_twice(cards) or _different_world_sizes(cards) or _different_backends(cards)


def find_missing(cards: list[Card], world_size: int, waited_s: float, place: str) -> Finding:
    """Who has not come when the time is over."""
    missing = missing_numbers({card.rank for card in cards}, world_size)
    hosts, num_here = {rank: likely_host(rank, cards) for rank in missing}, world_size - len(missing)
    return load_cause("RW101").finding(
        f"{with_host(missing, hosts)} never registered at {place}: {num_here} of {world_size} ranks did within {waited_s:.0f} s",
        certain=True,
        culprits=tuple(Place(rank=rank, host=hosts[rank]) for rank in missing[:_MAX_PLACES]),
        why=f"registered are {roll_text(cards)}; whoever is missing was not started, ended before, or cannot reach {place} from its host",
        next=("read the missing rank's own output: it names what it could not reach, or how it ended",),
        stage=REGISTRATION.name,
    )


def find_device_problem(cards: list[Card]) -> Finding | None:
    """Two ranks on one GPU: NCCL refuses it, and the two would share its memory."""
    by_gpu: dict[str, list[Card]] = {}
    for card in cards:
        if card.gpu:
            by_gpu.setdefault(card.gpu, []).append(card)
    for gpu, sharing in by_gpu.items():
        hostids = {card.settings.get("NCCL_HOSTID", "") for card in sharing}
        if len(sharing) < 2 or (len(hostids) == len(sharing) and "" not in hostids):  # on purpose, see NCCL_HOSTID
            continue
        ranks = [card.rank for card in sharing]
        used = ", ".join(f"rank {card.rank} uses {card.device}" for card in sharing[:8])
        return load_cause("RW121").finding(
            f"{ranks_text(ranks)} on {sharing[0].host} claim the same GPU ({gpu}): {used}",
            certain=True,
            culprits=tuple(card.place for card in sharing),
            why="the device comes from LOCAL_RANK, which is the same for these ranks, or CUDA_VISIBLE_DEVICES shows them one GPU",
            stage=DEVICES.name,
        )
    return None


def find_unreachable_address(cards: list[Card]) -> Finding | None:
    """A rank that would tell the ranks of other hosts to connect to its own loopback."""
    hosts = {card.host for card in cards}
    lost = [card for card in cards if card.is_loopback and not card.uses_nccl and _is_dialled(card, cards)]
    if len(hosts) < 2 or not lost:
        return None
    card = lost[0]
    ranks = ranks_text([c.rank for c in lost])
    return load_cause("RW114").finding(
        f"{ranks} on {card.host} would be reached at {card.address}, which on every other host is that host itself",
        certain=True,
        culprits=tuple(c.place for c in lost),
        why=f"without GLOO_SOCKET_IFNAME gloo offers the address that the name {card.host} resolves to there; "
        f"towards the store that host uses {card.route or 'another one'}",
        next=(f"on {card.host}, use the interface with {card.route}: ip -br addr",) if card.route else (),
        stage=BACKEND.name,
    )


def find_differences(cards: list[Card]) -> list[Finding]:
    """Versions and settings that are not the same everywhere; an error where the ranks could not understand each other."""
    return [*_different_versions(cards), *_different_settings(cards)]


def roll_text(cards: Iterable[Card]) -> str:
    """`ranks 0, 1 on node-a and rank 3 on node-b`."""
    by_host: dict[str, list[int]] = {}
    for card in cards:
        by_host.setdefault(card.host, []).append(card.rank)
    parts = [f"{ranks_text(ranks)} on {host}" for host, ranks in sorted(by_host.items(), key=lambda item: min(item[1]))]
    shown = parts[:8] + ([f"{len(parts) - 8} more hosts"] if len(parts) > 8 else [])
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown) or "none"


def registered_text(cards: list[Card], world_size: int, waited_s: float) -> str:
    """`3 of 4 ranks registered, waiting for rank 2 on node-b, 14 s`."""
    missing = missing_numbers({card.rank for card in cards}, world_size)
    return waiting_text(missing, {rank: likely_host(rank, cards) for rank in missing}, world_size, waited_s)


def likely_host(rank: int, cards: list[Card]) -> str | None:
    """Where a missing rank should be: launchers number a host's ranks one after the other, so its neighbours tell; None if they do not."""
    by_rank = {card.rank: card for card in cards}
    for card in cards:
        if card.local_rank is None:
            return None
    near = [by_rank[r] for r in (rank - 1, rank + 1) if r in by_rank]
    before = next((card for card in near if card.rank < rank), None)
    after = next((card for card in near if card.rank > rank), None)
    if after is not None and after.local_rank:
        return after.host
    if before is not None and after is not None and before.host == after.host:
        return before.host
    return None


def _is_dialled(card: Card, cards: list[Card]) -> bool:
    return any(other.host != card.host and other.dials(card) for other in cards)


def _brought_along(cards: list[Card]) -> Finding | None:
    return next((Finding.from_dict(card.problem) for card in cards if card.problem), None)


def _claimed_twice(cards: list[Card]) -> Finding | None:
    for rank, claimants in claimed_twice((card.rank, card) for card in cards).items():
        who = " and ".join(f"pid {card.pid} on {card.host}" for card in claimants)
        return load_cause("RW102").finding(
            f"{len(claimants)} processes are rank {rank}: {who}",
            certain=True,
            culprits=tuple(card.place for card in claimants),
            why="RANK must be unique over all hosts; with one rank given twice another is given to nobody",
            stage=REGISTRATION.name,
        )
    return None


def _different_world_sizes(cards: list[Card]) -> Finding | None:
    sizes = {card.rank: card.world_size for card in cards}
    if beyond := [card for card in cards if card.rank >= card.world_size]:
        card = beyond[0]
        return load_cause("RW112").finding(
            f"rank {card.rank} on {card.host} is outside its world: WORLD_SIZE={card.world_size} has ranks 0 to {card.world_size - 1}",
            certain=True,
            culprits=tuple(one.place for one in beyond),
            stage=REGISTRATION.name,
        )
    differs = find_difference(sizes)
    if differs is None:
        return None
    return load_cause("RW112").finding(
        f"ranks disagree about the world size: {differs.text('WORLD_SIZE=')}",
        certain=True,
        culprits=tuple(card.place for card in cards if card.rank in differs.odd),
        why="each rank waits for as many ranks as its own WORLD_SIZE says",
        stage=REGISTRATION.name,
    )


def _different_backends(cards: list[Card]) -> Finding | None:
    backends = {card.rank: card.backend for card in cards}
    differs = find_difference(backends)
    if differs is None:
        return None
    return load_cause("RW113").finding(
        f"ranks use different backends: {differs.text()}",
        certain=True,
        culprits=tuple(card.place for card in cards if card.rank in differs.odd),
        why="session() takes NCCL where it sees a GPU and gloo where it sees none; backend= sets one for all",
        stage=DEVICES.name,
    )


def _different_versions(cards: list[Card]) -> list[Finding]:
    findings = []
    for what in sorted({name for card in cards for name in card.versions}):
        versions = {card.rank: card.versions.get(what, "none") for card in cards}
        if differs := find_difference(versions):
            # Releases of torch and NCCL that differ in more than the last number speak different protocols.
            breaks = what in ("torch", "nccl") and len({tuple(v.split(".")[:2]) for v in versions.values()}) > 1
            cause = load_cause("RW123")
            findings.append(
                cause.finding(
                    f"{what} is not the same on all ranks: {differs.text()}",
                    certain=True,
                    severity="error" if breaks else "warning",
                    culprits=tuple(card.place for card in cards if card.rank in differs.odd)[:_MAX_PLACES],
                    stage=REGISTRATION.name,
                )
            )
    return findings


def _different_settings(cards: list[Card]) -> list[Finding]:
    names = {name for card in cards for name in card.settings if name not in _OWN_SETTINGS and not name.startswith(_LOG_SETTINGS)}
    findings = []
    for name in sorted(names):
        values = {card.rank: card.settings.get(name, "(not set)") for card in cards}
        if differs := find_difference(values):
            findings.append(
                load_cause("RW125").finding(
                    f"{name} is not the same on all ranks: {differs.text()}",
                    certain=True,
                    culprits=tuple(card.place for card in cards if card.rank in differs.odd)[:_MAX_PLACES],
                    stage=REGISTRATION.name,
                )
            )
    return findings
