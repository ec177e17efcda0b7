"""Parameter names: the prefixes that wrappers add, and the likely name where a name is missing."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Mapping
from itertools import takewhile
from typing import Any

# The attribute under which each wrapper keeps the wrapped module, and what the wrapper is.
WRAPPERS = {
    "module": "DistributedDataParallel, DataParallel, AveragedModel or DeepSpeed",
    "_orig_mod": "torch.compile",
    "_fsdp_wrapped_module": "FullyShardedDataParallel",
    "_checkpoint_wrapped_module": "activation checkpointing",
    "_forward_module": "Lightning Fabric",
    "_original_module": "Lightning Fabric",
}
_WEIGHT_NORM = re.compile(r"(.*?)parametrizations\.([^.]+)\.original([01])")
_MAX_COMPARED = 2000  # names that a missing one is compared with; more would take seconds and help little


def bare(name: str) -> str:
    """The name without the parts that wrappers add, at any depth: `module._orig_mod.0._orig_mod.weight` is `0.weight`."""
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


def in_whole_parts(prefix: str | None) -> str | None:
    """The prefix with a dot at its end: `model` becomes `model.`, so that it does not match `model_ema.` as well."""
    return prefix and prefix.rstrip(".") + "."


def as_old_weight_norm(name: str) -> str:
    """`0.parametrizations.weight.original1` as torch.nn.utils.weight_norm called it: `0.weight_v`. torch itself converts the other way."""
    found = _WEIGHT_NORM.fullmatch(name)
    return f"{found[1]}{found[2]}_{'gv'[int(found[3])]}" if found else name


def notes_by_own_names(named: Mapping[str, str], notes: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The checkpoint's notes about modules, by the modules' names in the model; `named` maps each tensor's name here to the one there."""
    found = {bare(name): about for name, about in notes.items()}
    for ours, theirs in named.items():
        own, other = ours.split(".")[:-1], theirs.split(".")[:-1]
        while True:
            if (about := notes.get(".".join(other))) is not None:
                found[".".join(own)] = about
            if own and other and own[-1] == other[-1]:
                own, other = own[:-1], other[:-1]
            elif own and own[-1] in WRAPPERS:
                own = own[:-1]
            elif own and other and other[-1] in WRAPPERS:
                other = other[:-1]
            else:
                break
    return found


def wrappers_in(names: Iterable[str]) -> dict[str, int]:
    """Prefixes that wrappers have put in front of names, outermost part first (`module._orig_mod.`), with the number of such names."""
    found: dict[str, int] = {}
    for name in names:
        parts = name.split(".")
        prefix = ""
        for part in parts:
            if part in WRAPPERS:
                prefix += f"{part}."
            elif prefix:
                found[prefix] = found.get(prefix, 0) + 1
                prefix = ""
    return found


def common_prefix(names: Collection[str]) -> str:
    """The parts with which all names begin, each followed by a dot; the last part of a name does not count."""
    parts = [name.split(".")[:-1] for name in names]
    shared = []
    for column in zip(*parts):
        if len(set(column)) != 1:
            break
        shared.append(column[0])
    return "".join(f"{part}." for part in shared)


def outer_wrappers(names: Collection[str]) -> str:
    """The parts of wrappers with which all names begin: `module._orig_mod.`"""
    return "".join(f"{part}." for part in takewhile(WRAPPERS.__contains__, common_prefix(names).split(".")))


def nearest(name: str, candidates: Iterable[str]) -> str | None:
    """The candidate that is most likely meant; the same last part counts more than anything in front."""
    best, best_score = None, 0.45
    for candidate in list(candidates)[:_MAX_COMPARED]:
        score = difflib.SequenceMatcher(None, name, candidate, autojunk=False).ratio()
        score += 0.2 * (name.rsplit(".", 1)[-1] == candidate.rsplit(".", 1)[-1])
        if score > best_score:
            best, best_score = candidate, score
    return best
