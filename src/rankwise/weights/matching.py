"""Which tensor of a checkpoint belongs to which name of a model: pure deciding, no torch."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from rankwise.weights.names import bare, common_prefix, nearest, without_outer
from rankwise.weights.records import TensorRecord

_MAX_OUTER = 6  # wrappers around wrappers around the model
# What wrappers and libraries keep beside the weights; no model's parameter has these names.
_BOOKKEEPING = ("n_averaged",)


@dataclass(frozen=True)
class Slot:
    """A parameter or buffer of the model that wants a value; names of one tensor have the same `identity`."""

    shape: tuple[int, ...]
    dtype: str
    identity: int


@dataclass(frozen=True)
class Rules:
    """What the caller allows."""

    prefix: str | None = None  # use only what stands below it, without it
    allow_missing: Sequence[str] = ()
    allow_unexpected: Sequence[str] = ()


@dataclass(frozen=True)
class Fit:
    """How well one state dict fits: pairs (model's name: checkpoint's), and everything that has no partner."""

    pairs: dict[str, str]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    wrong: dict[str, str] = field(default_factory=dict)  # pairs whose shape or kind of number differs
    left_alone: tuple[str, ...] = ()  # allowed to be missing, so they keep the model's own values
    ignored: tuple[str, ...] = ()  # allowed to be unexpected, or bookkeeping
    ambiguous: tuple[str, ...] = ()  # several names are the same without wrappers
    removed: str = ""  # a prefix that is no wrapper's, taken off all names

    @property
    def is_whole(self) -> bool:
        return not (self.missing or self.unexpected or self.wrong or self.ambiguous)

    @property
    def faults(self) -> int:
        return len(self.missing) + len(self.unexpected) + len(self.wrong) + len(self.ambiguous)


def fit(slots: Mapping[str, Slot], tensors: Mapping[str, TensorRecord], rules: Rules) -> Fit:
    """The best fit of these tensors: as they are, without outer wrappers, without all wrappers, without a common prefix."""
    named = {name: name for name in tensors}
    if rules.prefix is not None:
        named = {short: name for name in tensors if (short := _below(name, rules.prefix)) is not None}
    fits = []
    for count in range(_MAX_OUTER):
        stripped = _strip_outer(named, count)
        if stripped is None:
            break
        fits.append(_pair(slots, tensors, stripped, rules))
        if fits[-1].is_whole:
            return fits[-1]
    fits.append(_pair_bare(slots, tensors, named, rules))
    if not fits[-1].is_whole:
        fits += _without_prefix(slots, tensors, named, rules)
    return min(fits, key=lambda one: (not one.is_whole, one.faults))


def _strip_outer(named: Mapping[str, str], count: int) -> dict[str, str] | None:
    """The names without their first `count` wrappers; None where not all of them have as many."""
    stripped = {without_outer(name, count): original for name, original in named.items() if name not in _BOOKKEEPING}
    if None in stripped or not stripped:
        return None
    kept = {name: name for name in named if name in _BOOKKEEPING}
    return {**{name: original for name, original in stripped.items() if name is not None}, **kept}


def _pair_bare(slots: Mapping[str, Slot], tensors: Mapping[str, TensorRecord], named: Mapping[str, str], rules: Rules) -> Fit:
    """Both sides without any wrapper at any depth, so that it does not matter who was wrapped, how often and where."""
    ours, theirs = _by_bare(slots), _by_bare(named)
    doubled = tuple(name for side in (ours, theirs) for names in side.values() if len(names) > 1 for name in names)
    if doubled:
        return Fit({}, tuple(slots), tuple(tensors), ambiguous=doubled)
    renamed = {ours.get(name, [name])[0]: named[names[0]] for name, names in theirs.items()}
    return _pair(slots, tensors, renamed, rules)


def _without_prefix(slots: Mapping[str, Slot], tensors: Mapping[str, TensorRecord], named: Mapping[str, str], rules: Rules) -> list[Fit]:
    """Lightning's `model.`, HuggingFace's `bert.`: a prefix that every name has, or none has and the model wants."""
    theirs, ours = {bare(name): original for name, original in named.items()}, {bare(name): name for name in slots}
    fits = []
    prefix = common_prefix(theirs)
    while prefix:
        shorter = {ours.get(name[len(prefix) :], name[len(prefix) :]): original for name, original in theirs.items()}
        fits.append(_with_removed(_pair(slots, tensors, shorter, rules), prefix))
        prefix = prefix.rstrip(".").rpartition(".")[0]
        prefix += "." if prefix else ""
    if wanted := common_prefix(ours):
        longer = {ours.get(wanted + name, name): original for name, original in theirs.items()}
        fits.append(_pair(slots, tensors, longer, rules))
    return fits


def _below(name: str, prefix: str) -> str | None:
    for form in (name, bare(name)):
        if form.startswith(prefix):
            return form[len(prefix) :]
    return None


def _with_removed(one: Fit, prefix: str) -> Fit:
    return replace(one, removed=prefix)


def _pair(slots: Mapping[str, Slot], tensors: Mapping[str, TensorRecord], named: Mapping[str, str], rules: Rules) -> Fit:
    pairs = {name: named[name] for name in slots if name in named}
    pairs |= _tied_pairs(slots, pairs)
    wrong = {ours: theirs for ours, theirs in pairs.items() if not _agree(slots[ours], tensors[theirs])}
    left_alone = tuple(name for name in slots if (name not in pairs or name in wrong) and _matches(name, rules.allow_missing))
    wrong = {ours: theirs for ours, theirs in wrong.items() if ours not in left_alone}
    unexpected = [name for name in named if name not in slots]
    ignored = tuple(name for name in unexpected if name in _BOOKKEEPING or _matches(name, rules.allow_unexpected))
    return Fit(
        pairs={ours: theirs for ours, theirs in pairs.items() if ours not in wrong and ours not in left_alone},
        missing=tuple(name for name in slots if name not in pairs and name not in left_alone),
        unexpected=tuple(named[name] for name in unexpected if name not in ignored),
        wrong=wrong,
        left_alone=left_alone,
        ignored=ignored,
    )


def _tied_pairs(slots: Mapping[str, Slot], pairs: Mapping[str, str]) -> dict[str, str]:
    """A name that is missing, but is another name of a tensor that is there."""
    sources = {slots[name].identity: theirs for name, theirs in pairs.items()}
    return {name: sources[slot.identity] for name, slot in slots.items() if name not in pairs and slot.identity in sources}


def _agree(slot: Slot, record: TensorRecord) -> bool:
    if record.unreadable:
        return True  # its shape is not known here; reading it says why
    return slot.shape == record.shape and kind_of(slot.dtype) == kind_of(record.dtype)


def kind_of(dtype: str) -> str:
    """float, complex, bool or int: between these nothing is converted silently."""
    return "float" if dtype.startswith(("float", "bfloat")) else dtype.rstrip("0123456789").lstrip("u")


def nearest_names(one: Fit, slots: Mapping[str, Slot], tensors: Mapping[str, TensorRecord], names: Sequence[str]) -> dict[str, str]:
    """For each of these missing names the unexpected one that is most likely it; one of the same shape first."""
    found = {}
    for name in names:
        same_shape = [other for other in one.unexpected if tensors[other].shape == slots[name].shape]
        guess = nearest(name, same_shape) or nearest(name, one.unexpected)
        if guess is not None:
            found[name] = guess
    return found


def _by_bare(names: Mapping[str, object]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(bare(name), []).append(name)
    return found


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
