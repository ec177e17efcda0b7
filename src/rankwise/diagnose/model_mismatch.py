"""Models that differ between ranks: what DDP was given, compared parameter by parameter."""

from __future__ import annotations

from rankwise.causes import load_cause
from rankwise.diagnose.rank_state import place_at
from rankwise.diagnose.wording import verb
from rankwise.evidence.frames import user_frame
from rankwise.evidence.records import JobEvidence
from rankwise.findings import Finding, ranks_text


def model_difference(job: JobEvidence, *, deadlock: bool) -> Finding | None:
    """What DDP was given on each rank is not the same: the first parameter that differs."""
    models = {rank: e.models[-1] for rank, e in sorted(job.ranks.items()) if e.models}
    kinds: dict[object, list[int]] = {}
    for rank, model in models.items():
        kinds.setdefault((model.names, model.shapes, model.dtypes), []).append(rank)
    if len(kinds) < 2:
        return None
    (_, first_ranks), (_, other_ranks) = sorted(kinds.items(), key=lambda item: -len(item[1]))[:2]
    a, b = models[first_ranks[0]], models[other_ranks[0]]
    culprits = other_ranks if len(first_ranks) > len(models) / 2 else sorted(models)
    if len(a.names) != len(b.names):
        extra = sorted(set(a.names) ^ set(b.names))
        what = f"{verb(first_ranks, 'has', 'have')} {len(a.names)} parameters, {verb(other_ranks, 'has', 'have')} {len(b.names)}; they differ in {', '.join(extra[:4])}"
    else:
        pairs = zip(zip(a.names, a.shapes, a.dtypes), zip(b.names, b.shapes, b.dtypes))
        differing = next(((mine, theirs) for mine, theirs in pairs if mine != theirs), None)
        if differing is None:
            return None
        (name, shape, dtype), (other_name, other_shape, other_dtype) = differing
        what = (
            f"parameter {name} has shape {list(shape)} {dtype.removeprefix('torch.')} on {ranks_text(first_ranks)} "
            f"and {'' if name == other_name else other_name + ' '}{list(other_shape)} {other_dtype.removeprefix('torch.')} on {ranks_text(other_ranks)}"
        )
    return load_cause("RW216").finding(
        f"the models differ between ranks (size mismatch): {what}",
        certain=True,
        culprits=tuple(place_at(job.ranks[rank], user_frame(models[rank].stack)) for rank in culprits),
        why="DDP needs the same model on every rank: the same parameters, shapes and dtypes in the same order",
        deadlock=deadlock,
    )
