"""Models of MODELS.toml that are made of others: a split by weight (A/B test, canary), or an ensemble."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rankwise.errors import UsageError
from rankwise.pool.api.arguments import check_number
from rankwise.pool.api.ensembles import MERGES
from rankwise.pool.memory.datatypes import TensorSpec

OF_VIRTUAL = {"split", "ensemble", "combine", "inputs", "outputs", "shadow"}


@dataclass(frozen=True)
class VirtualModel:
    """`targets` are models by name, or by NAME:VERSION, with their weights; with `combine`, all of them are asked."""

    name: str
    targets: Mapping[str, float]
    combine: str = ""
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    shadow: str = ""
    version: str = "1"


def is_virtual(said: Mapping[str, Any]) -> bool:
    return "split" in said or "ensemble" in said


def read_targets(where: str, said: Mapping[str, Any]) -> tuple[dict[str, float], str]:
    """The targets, and how their outputs are combined; empty for a split."""
    if "split" in said and "ensemble" in said:
        raise UsageError(f"{where} is a split or an ensemble, not both")
    if "split" in said:
        if "combine" in said:
            raise UsageError(f"{where}: combine belongs to an ensemble; of a split, one model answers")
        return _weights(where, said["split"]), ""
    listed, combine = said["ensemble"], said.get("combine", "mean")
    is_list = isinstance(listed, list) and all(isinstance(name, str) for name in listed)
    if not is_list or len(listed) < 2 or len(set(listed)) < len(listed):
        raise UsageError(f"{where}: ensemble is {listed!r}; it must be a list of two models or more", next=('ensemble = ["a", "b"]',))
    if combine not in MERGES:
        raise UsageError(f"{where}: there is no way to combine called {combine!r}", why=f"there are {', '.join(MERGES)}")
    return dict.fromkeys(listed, 1.0), combine


def _weights(where: str, said: Any) -> dict[str, float]:
    example = "split = { champion = 0.9, challenger = 0.1 }"
    if not isinstance(said, dict) or not said:
        raise UsageError(f"{where}: split is {said!r}; it must be a table of weights", next=(example,))
    for name, weight in said.items():
        check_number(f"{where}: the weight of {name!r}", weight, least=0)
    if not sum(said.values()) > 0:
        raise UsageError(f"{where}: the weights do not say how to split", next=(example,))
    return {name: float(weight) for name, weight in said.items()}


def check_targets(virtual: VirtualModel, real: set[str]) -> None:
    """`real` are the names of models, and NAME:VERSION of each."""
    for name in (*virtual.targets, *([virtual.shadow] if virtual.shadow else [])):
        if name not in real:
            raise UsageError(f"model {virtual.name!r} names {name!r}, which is none", why=f"there are {', '.join(sorted(real))}")
