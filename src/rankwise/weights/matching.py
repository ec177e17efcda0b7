"""Decides which tensor of a checkpoint belongs to which name of a model. Pure, no torch."""

from __future__ import annotations

import fnmatch
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rankwise.weights.parameter_names import as_old_weight_norm, bare, common_prefix, nearest, outer_wrappers
from rankwise.weights.state_dicts import is_training_key
from rankwise.weights.tensor_records import TensorRecord

# What wrappers and libraries keep beside the weights; a model has no parameter of this name.
_BOOKKEEPING = ("n_averaged",)


@dataclass(frozen=True)
class Wanted:
    """A parameter or buffer of the model that wants a value. Two names of one tensor have the same `identity`."""

    shape: tuple[int, ...]
    dtype: str
    identity: Hashable


@dataclass(frozen=True)
class Rules:
    """What the caller allows."""

    prefix: str | None = None  # use only names that begin with it, and take it off
    allow_missing: Sequence[str] = ()
    allow_unexpected: Sequence[str] = ()


@dataclass(frozen=True)
class Fit:
    """How well one state dict fits: pairs (model's name: checkpoint's name), and everything without a partner."""

    pairs: dict[str, str]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    wrong: dict[str, str] = field(default_factory=dict)  # pairs whose shape or kind of number differs
    left_alone: tuple[str, ...] = ()  # allowed to be missing, so they keep the model's own values
    ignored: tuple[str, ...] = ()  # allowed to be unexpected, or bookkeeping
    ambiguous: tuple[str, ...] = ()  # names that are the same without wrappers
    removed: str = ""  # a prefix that was taken off all names, though it is not a wrapper's
    added: str = ""  # a prefix that the model has and the checkpoint has not
    handed: Mapping[str, str] | None = None  # what a model with its own loading is given, if that is more than the pairs

    @property
    def is_whole(self) -> bool:
        return self.faults == 0

    @property
    def is_full(self) -> bool:
        """Whether other names could not fit better: all of it fits, and patterns had to leave out nothing."""
        return self.is_whole and not self.left_alone and not self.ignored

    @property
    def faults(self) -> int:
        return len(self.missing) + len(self.unexpected) + len(self.wrong) + len(self.ambiguous)


def fit(slots: Mapping[str, Wanted], tensors: Mapping[str, TensorRecord], rules: Rules) -> Fit:
    """The best fit of these tensors under any of the names they may have: with the fewest faults, and then with the most pairs."""
    fits = []
    for naming in namings(slots, tensors, rules):
        fits.append(pair(slots, tensors, naming, rules))
        if fits[-1].is_full:
            return fits[-1]
    return min(fits, key=lambda one: (one.faults, -len(one.pairs)))


@dataclass(frozen=True)
class Naming:
    """One way to name the checkpoint's tensors as the model does: each such name, with the name in the checkpoint."""

    named: Mapping[str, str]
    doubled: tuple[str, ...] = ()  # names that would be the same this way, so that it cannot be used
    removed: str = ""
    added: str = ""


def namings(slots: Mapping[str, Wanted], tensors: Mapping[str, TensorRecord], rules: Rules) -> Iterator[Naming]:
    """The ways to name the tensors: as they are, without outer or all wrappers, without a common prefix, as the old weight_norm did."""
    start = _taken(tensors, rules.prefix)
    yield from _namings(slots, start)
    older = {as_old_weight_norm(name): original for name, original in start.named.items()}
    if older.keys() != start.named.keys() and len(older) == len(start.named) and not start.doubled:
        yield from _namings(slots, Naming(older))


def _namings(slots: Mapping[str, Wanted], start: Naming) -> Iterator[Naming]:
    yield start
    if start.doubled:
        return
    if outer := outer_wrappers([name for name in start.named if name not in _BOOKKEEPING]):
        yield Naming({name.removeprefix(outer): original for name, original in start.named.items()})
    yield _all_stripped(slots, start.named)
    yield from _other_prefixes(slots, start.named)


def _taken(tensors: Mapping[str, TensorRecord], prefix: str | None) -> Naming:
    if prefix is None:
        return Naming({name: name for name in tensors})
    found = [(short, name) for name in tensors if (short := below(name, prefix)) is not None]
    named = dict(found)
    return Naming(named, tuple(name for short, name in found if named[short] != name))


def _all_stripped(slots: Mapping[str, Wanted], named: Mapping[str, str]) -> Naming:
    """Names compared without any wrapper at any depth, so that it does not matter what was wrapped, how often and where."""
    ours, theirs = _by_bare(slots), _by_bare(named)
    doubled = tuple(name for side in (ours, theirs) for names in side.values() if len(names) > 1 for name in names)
    return Naming({ours.get(name, [name])[0]: named[names[0]] for name, names in theirs.items()}, doubled)


def _other_prefixes(slots: Mapping[str, Wanted], named: Mapping[str, str]) -> Iterator[Naming]:
    """Lightning's `model.`, HuggingFace's `bert.`: a prefix that all names have and the model has not, or the other way round."""
    theirs, ours = {bare(name): original for name, original in named.items()}, {bare(name): name for name in slots}
    if len(theirs) < len(named) or len(ours) < len(slots):
        return  # two names are the same without wrappers: whichever came last would win
    prefix = common_prefix(theirs)
    while prefix:
        if not any(is_training_key(part) for part in prefix.split(".")):  # momentum_buffer.0.weight is not 0.weight
            shorter = {ours.get(name[len(prefix) :], name[len(prefix) :]): original for name, original in theirs.items()}
            yield Naming(shorter, removed=prefix)
        prefix = prefix.rstrip(".").rpartition(".")[0]
        prefix += "." if prefix else ""
    if wanted := common_prefix(ours):
        yield Naming({ours.get(wanted + name, name): original for name, original in theirs.items()}, added=wanted)


def below(name: str, prefix: str) -> str | None:
    """The rest of the name after the prefix, with or without wrappers; None if it does not begin with it."""
    for form in (name, bare(name)):
        if form.startswith(prefix):
            return form[len(prefix) :]
    return None


def pair(slots: Mapping[str, Wanted], tensors: Mapping[str, TensorRecord], naming: Naming, rules: Rules) -> Fit:
    """How the tensors fit under these names."""
    if naming.doubled:
        return Fit({}, tuple(slots), tuple(tensors), ambiguous=naming.doubled)
    named = naming.named
    pairs = {name: named[name] for name in slots if name in named}
    pairs |= _tied_pairs(slots, pairs)
    wrong = {ours: theirs for ours, theirs in pairs.items() if not _agree(slots[ours], tensors[theirs])}
    if slots and len(wrong) == len(pairs):
        rules = Rules(rules.prefix)  # they have nothing in common, and patterns that leave out all of it must not make that a fit
    left_alone = tuple(name for name in slots if (name not in pairs or name in wrong) and may_be_missing(name, pairs, rules))
    wrong = {ours: theirs for ours, theirs in wrong.items() if ours not in left_alone}
    unexpected = [name for name in named if name not in slots]
    ignored = tuple(name for name in unexpected if is_allowed(name, named, rules))
    return Fit(
        pairs={ours: theirs for ours, theirs in pairs.items() if ours not in wrong and ours not in left_alone},
        missing=tuple(name for name in slots if name not in pairs and name not in left_alone),
        unexpected=tuple(named[name] for name in unexpected if name not in ignored),
        wrong=wrong,
        left_alone=left_alone,
        ignored=ignored,
        removed=naming.removed,
        added=naming.added,
    )


def is_allowed(name: str, named: Mapping[str, str], rules: Rules) -> bool:
    """Whether a name that the model does not have may be ignored, judged by that name or by the one in the checkpoint."""
    return name in _BOOKKEEPING or any(_matches(each, rules.allow_unexpected) for each in (name, named.get(name, name)))


def may_be_missing(name: str, pairs: Mapping[str, str], rules: Rules) -> bool:
    """Whether a name of the model may keep its own value: the caller says so, or it is a counter that torch before 0.4.1 did not write."""
    path, _, last = name.rpartition("num_batches_tracked")
    is_old_counter = name not in pairs and not last and f"{path}running_mean" in pairs and f"{path}running_var" in pairs
    return is_old_counter or _matches(name, rules.allow_missing)


def _tied_pairs(slots: Mapping[str, Wanted], pairs: Mapping[str, str]) -> dict[str, str]:
    """Partners for missing names of the model that are other names of a tensor that has a partner."""
    sources = {slots[name].identity: theirs for name, theirs in pairs.items()}
    return {name: sources[slot.identity] for name, slot in slots.items() if name not in pairs and slot.identity in sources}


def _agree(slot: Wanted, record: TensorRecord) -> bool:
    if record.unreadable:
        return True  # its shape is not known here; reading it says why
    is_scalar = slot.shape == () and record.shape == (1,)  # torch before 0.4 had no other, and FSDP1 takes no other
    is_mask = slot.dtype == "bool" and record.dtype == "uint8"  # so before torch 1.2; numbers but 0 and 1 are refused later
    return (is_scalar or slot.shape == record.shape) and (is_mask or kind_of(slot.dtype) == kind_of(record.dtype))


def kind_of(dtype: str) -> str:
    """float, complex, bool or int: no value is converted silently from one kind to another."""
    return "float" if dtype.startswith(("float", "bfloat")) else dtype.rstrip("0123456789").lstrip("u")


def nearest_names(one: Fit, slots: Mapping[str, Wanted], tensors: Mapping[str, TensorRecord], names: Sequence[str]) -> dict[str, str]:
    """For each missing name the unexpected one that most likely stands for it, of the same shape if possible."""
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
    """Whether a pattern matches this name, with or without wrappers."""
    return any(fnmatch.fnmatchcase(each, pattern) for pattern in patterns for each in (name, bare(name)))
