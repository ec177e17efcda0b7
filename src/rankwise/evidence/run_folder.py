"""The evidence part of a run folder: written by the watcher, read back by `explain`, perhaps on another machine, so it is never trusted.

`evidence/job.json` holds the job, `evidence/ranks/<r>.json` one rank each, `evidence/ranks/<r>.bin` its collectives as flat arrays.
"""

from __future__ import annotations

import json
import os
import stat
import struct
from array import array
from dataclasses import fields, replace
from functools import lru_cache
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from rankwise.evidence.collective_log import ORIGINS, CollectiveLog, Signature
from rankwise.evidence.records import Call, Frame, JobEvidence, RankEvidence, Stack
from rankwise.files import write_whole
from rankwise.thaw import freeze, thaw

FORMAT = 1
_HEADER = struct.Struct("<4sI")
_MAGIC = b"RWC1"
_ROW = 4 + 4 + 8 + 4 + 1 + 1
_MAX_JSON = 512 << 20
_MAX_ROWS = 1 << 22
_MAX_RANKS = 10_000_000
_DAMAGE = (ValueError, OSError, KeyError, TypeError, RecursionError, OverflowError)
_KNOWN_ORIGINS = bytes(range(len(ORIGINS)))


def save_evidence(folder: Path, job: JobEvidence) -> None:
    """Write the whole evidence; each file is whole when it appears."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    plain = {**without(job, "ranks"), "duplicates": []}
    write_whole(folder / "job.json", json.dumps({"format": FORMAT, **plain}, default=str).encode(), is_private=True)
    _save_ranks(folder / "ranks", job.ranks)
    if job.duplicates or (folder / "duplicates").exists():
        _save_ranks(folder / "duplicates", dict(enumerate(job.duplicates)))


def _save_ranks(folder: Path, ranks: dict[int, RankEvidence]) -> None:
    folder.mkdir(mode=0o700, exist_ok=True)
    for number, evidence in ranks.items():
        save_rank(folder, number, evidence)
    names = {str(number) for number in ranks}
    for path in folder.iterdir():  # files of an earlier verdict whose ranks this one does not have
        if path.stem not in names:
            path.unlink(missing_ok=True)


def save_rank(folder: Path, rank: int, evidence: RankEvidence) -> None:
    write_whole(folder / f"{rank}.json", json.dumps(rank_as_dict(evidence), default=str).encode(), is_private=True)
    write_whole(folder / f"{rank}.bin", pack_log(evidence.collectives), is_private=True)


def rank_as_dict(evidence: RankEvidence) -> dict[str, Any]:
    """One rank without the arrays of its collectives; its many calls were made from few places, so these are written once."""
    log = evidence.collectives
    places: dict[Stack, int] = {}
    return {
        **without(evidence, "collectives", "calls"),
        "calls": [{**freeze(replace(call, stack=())), "at": places.setdefault(call.stack, len(places))} for call in evidence.calls],
        "places": [freeze(place) for place in places],
        "signatures": [freeze(signature) for signature in log.signatures],
        "sites": [freeze(site) for site in log.sites],
        "is_partial": log.is_partial,
    }


def load_evidence(folder: Path) -> JobEvidence:
    """Read the evidence back. Raises ValueError for what is not evidence, OSError for what cannot be read; damaged ranks are left out, and
    `blind` says so."""
    data = _read_json(folder / "job.json")
    if data.get("format") != FORMAT:
        raise ValueError(f"evidence format {data.get('format')!r} is not {FORMAT}")
    job: JobEvidence = thaw(JobEvidence, {**data, "ranks": {}})
    duplicates: list[RankEvidence] = []
    blind = list(job.blind)
    for path in sorted(folder.glob("*/*.json"), key=lambda path: (len(path.stem), path.stem)):
        try:
            if path.parent.name == "duplicates":
                duplicates.append(load_rank(path))
            elif path.parent.name == "ranks":
                job.ranks[int(path.stem)] = _checked_rank(load_rank(path), path.stem)
        except _DAMAGE as error:
            whose = f"rank {path.stem}" if path.parent.name == "ranks" else "a further process"
            blind.append(f"the evidence of {whose} is damaged ({type(error).__name__})")
    return replace(job, blind=tuple(blind), duplicates=tuple(duplicates))


def _checked_rank(evidence: RankEvidence, name: str) -> RankEvidence:
    if str(evidence.rank) != name or not 0 <= evidence.rank < _MAX_RANKS:
        raise ValueError("another rank's")
    return evidence


def load_rank(path: Path) -> RankEvidence:
    binary = path.with_suffix(".bin")
    return rank_from_dict(_read_json(path), read_plain_file(binary, _MAX_ROWS * _ROW + 64) if binary.exists() else None)


def rank_from_dict(data: dict[str, Any], packed_log: bytes | None) -> RankEvidence:
    """What `rank_as_dict` and `pack_log` made of a rank; raises one of _DAMAGE for anything else."""
    signatures = [thaw(Signature, signature) for signature in _list(data.pop("signatures", []))]
    sites = [thaw_stack(site) for site in _list(data.pop("sites", []))]
    partial = bool(data.pop("is_partial", False))
    places = [thaw_stack(place) for place in _list(data.pop("places", []))]
    calls = tuple(_thaw_call(call, places) for call in _list(data.pop("calls", [])))
    evidence: RankEvidence = thaw(RankEvidence, data)
    log = unpack_log(packed_log, signatures, sites) if packed_log is not None else CollectiveLog()
    log.is_partial = partial
    return replace(evidence, calls=calls, collectives=log)


def _thaw_call(data: Any, places: list[Stack]) -> Call:
    call: Call = thaw(Call, data)
    at = data.get("at", 0)
    if not isinstance(at, int) or not 0 <= at < len(places):
        raise ValueError("a call points outside the places")
    return replace(call, stack=places[at])


def pack_log(log: CollectiveLog) -> bytes:
    arrays = (log.what, log.seq, log.created_ns, log.site)
    return _HEADER.pack(_MAGIC, len(log)) + b"".join(part.tobytes() for part in arrays) + bytes(log.done) + bytes(log.origin)


def unpack_log(data: bytes, signatures: list[Signature], sites: list[Any]) -> CollectiveLog:
    """The flat arrays back, with every index checked against its table. Ranks that did the same share their arrays."""
    if len(data) < _HEADER.size:
        raise ValueError("too short for a collective log")
    magic, count = _HEADER.unpack_from(data)
    if magic != _MAGIC or count > _MAX_ROWS or len(data) != _HEADER.size + count * _ROW:
        raise ValueError("not a collective log, or cut off")
    ends = list(accumulate((4 * count, 4 * count, 8 * count, 4 * count, count, count), initial=_HEADER.size))
    what, seq, created_ns, site, done, origin = (data[start:end] for start, end in pairwise(ends))
    (whats, _, highest), (sites_at, lowest_site, highest_site) = _column("I", what), _column("i", site)
    is_inside = highest < len(signatures) and lowest_site >= -1 and highest_site < len(sites)
    if not is_inside or origin.translate(None, _KNOWN_ORIGINS):
        raise ValueError("the collective log points outside its tables")
    return CollectiveLog(
        signatures=signatures,
        sites=sites,
        what=whats,
        seq=_column("I", seq)[0],
        created_ns=array("Q", created_ns),
        done=bytearray(done),
        site=sites_at,
        origin=bytearray(origin),
    )


@lru_cache(maxsize=64)
def _column(code: str, raw: bytes) -> tuple[array[int], int, int]:
    """One array of a collective log, its lowest and its highest value."""
    values = array(code, raw)
    return values, min(values, default=-1), max(values, default=-1)


def thaw_stack(site: Any) -> Stack:
    return tuple(thaw(Frame, frame) for frame in _list(site))


def without(record: Any, *left_out: str) -> dict[str, Any]:
    return {field.name: freeze(getattr(record, field.name)) for field in fields(record) if field.name not in left_out}


def read_plain_file(path: Path, limit: int) -> bytes:
    """A file's bytes; refuses a link (it may lead out of the folder) and a pipe (reading it may block for ever)."""
    with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW), "rb", buffering=0) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_size > limit:
            raise ValueError(f"{path.name} is too large to be evidence, or no file")
        return file.readall()


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(read_plain_file(path, _MAX_JSON))
    except RecursionError as error:
        raise ValueError(f"{path.name} is nested too deeply") from error
    if not isinstance(data, dict):
        raise ValueError(f"{path.name} holds no object")
    return data


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError("expected a list")
    return value
