"""Chooses the state dict of a checkpoint that the model wants; if none fits, says where the two sides disagree."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from rankwise.errors import UsageError
from rankwise.weights.matching import Fit, Rules, Wanted, below, fit, may_be_missing, nearest_names
from rankwise.weights.parameter_names import as_old_weight_norm, bare
from rankwise.weights.state_dicts import MAIN_KEYS, USUAL_KEYS, StateDict, is_averaged_key, is_training_key
from rankwise.weights.tensor_records import CheckpointError, TensorRecord

_MAX_OWN = 16  # state dicts that a model's own loading is tried with; each is loaded once for that
_SHOWN = 6  # rows of each kind in a finding
OwnFit = Callable[[StateDict], Fit | None]  # tries a model's own loading
# Names beside quantized weights (float8, GPTQ, AWQ, bitsandbytes) and low-rank adapters. Without them, the weights would be others.
_SCALE = re.compile(
    r"[._](weight_scale(_inv|_2)?|scale_(inv|weight|input)|input_scale|(q|_)?(scales|zeros)|SCB|absmax|quant_map|quant_state\b.*)$"
)
DEQUANTIZE = "its weights are quantized, and mean nothing without their scales: save the model again in bfloat16"
_SHARD = re.compile(r"-\d+-of-(?!0*1\.)\d+\.")
_ADAPTER = re.compile(r"[._]lora_")
_MAX_PREFIXES = 60  # prefixes that are tried for a hint; few parts of a model are whole models
_MAX_PARTS = 3  # parts that are offered; the checkpoint may fit each of many equal blocks


@dataclass(frozen=True)
class Choice:
    """The state dict that is used, how it fits, and the others that would have fitted as well."""

    state: StateDict
    fit: Fit
    also: tuple[str, ...]


def choose(
    path: Path,
    states: list[StateDict],
    slots: Mapping[str, Wanted],
    rules: Rules,
    key: str | None = None,
    own_fit: OwnFit | None = None,
) -> Choice:
    """The state dict that fits the whole model; raises CheckpointError if none or several do."""
    candidates = with_key(path, states, key) if key is not None else [state for state in states if not state.is_for_training]
    if not candidates:
        raise CheckpointError("RW735", f"{path} holds no weights", why=_found_text(states), next=_key_steps(states))
    fits = _fits(candidates, slots, rules, own_fit)
    whole = _distinct([(state, one) for state, one in fits if one.is_whole])
    trained = [(state, one) for state, one in whole if not state.is_averaged] or whole
    if len(trained) > 1:
        names = ", ".join(f"key={state.label!r}" for state, _ in trained)
        raise CheckpointError("RW735", f"{path} holds several sets of weights that fit", next=(f"give one of {names}",))
    if trained and key is None and (blocking := _usual_that_does_not_fit(trained[0][0], fits)):
        raise _mismatch(path, *blocking, slots, _key_steps([trained[0][0]]))
    if trained and key is None and (beside := _beside_the_key_of(trained[0][0], candidates, slots, rules)):
        steps = (f"give one of key={trained[0][0].label!r}, {beside}",)
        raise CheckpointError("RW735", f"{path} holds several sets of weights that fit", next=steps)
    if not trained:
        state, one = min(fits, key=lambda pair: _distance(pair[1]))
        raise _none_fits(path, state, one, slots, rules)
    best, one = trained[0]
    if any(map(is_scale, one.ignored)) and (narrow := _widened(best, one, slots)):
        summary = f"{narrow} is {best.tensors[one.pairs[narrow]].dtype} in {path}, and its scale would be left out"
        raise CheckpointError("RW734", summary, why="a name in allow_unexpected is that of a scale", next=(DEQUANTIZE,))
    return Choice(best, one, tuple(state.label or "the whole file" for state, _ in whole if state is not best))


def is_scale(name: str) -> bool:
    """Whether a quantized weight means nothing without this."""
    return _SCALE.search(name) is not None


def _widened(state: StateDict, one: Fit, slots: Mapping[str, Wanted]) -> str | None:
    """The first tensor that is float8 in the checkpoint and has a wider dtype in the model."""
    narrow = (ours for ours, theirs in one.pairs.items() if state.tensors[theirs].dtype.startswith("float8"))
    return next((ours for ours in narrow if not slots[ours].dtype.startswith("float8")), None)


def with_key(path: Path, states: list[StateDict], key: str) -> list[StateDict]:
    found = [state for state in states if state.label == key]
    if not found:
        known = ", ".join(repr(state.label) for state in states if state.key) or "none"
        raise UsageError(f"{path} has no weights under {key!r}", why=f"the keys with tensors are {known}")
    return found


def _fits(candidates: list[StateDict], slots: Mapping[str, Wanted], rules: Rules, own_fit: OwnFit | None) -> list[tuple[StateDict, Fit]]:
    """How each fits by its names. A model that loads in its own way also tries those that do not fit fully."""
    fits = []
    for state in candidates:
        by_name = fit(slots, state.tensors, rules)
        fits.append((state, replace(by_name, ambiguous=(*by_name.ambiguous, *state.doubled))))
    if own_fit is None:
        return fits
    whole = [state for state, one in fits if one.is_full]
    apart = [state for state, _ in fits if not any(state is one or state.is_around(one) or one.is_around(state) for one in whole)]
    found = {id(state): one for state in apart[:_MAX_OWN] if not state.doubled and (one := own_fit(state)) is not None}
    return [(state, found.get(id(state), one)) for state, one in fits]


def _distinct(whole: list[tuple[StateDict, Fit]]) -> list[tuple[StateDict, Fit]]:
    """Each set of tensors once: without a dictionary that contains another one, and without a second key of the same dictionary."""
    inner = [pair for pair in whole if not any(pair[0].is_around(other) for other, _ in whole)]
    return [pair for index, pair in enumerate(inner) if not any(pair[0].is_same_as(other) for other, _ in inner[:index])]


def _usual_that_does_not_fit(best: StateDict, fits: list[tuple[StateDict, Fit]]) -> tuple[StateDict, Fit] | None:
    """A usual key (`model`) beside the state dict that fits, if it does not fit itself. Then the user has to choose. Beside an
    average, `net` is a usual key too: the average is hardly one of a net that does not fit."""
    usual = USUAL_KEYS if best.is_averaged else MAIN_KEYS
    for state, one in fits:
        depth = len(state.key) - 1
        is_beside = 0 <= depth < len(best.key) and state.key[:depth] == best.key[:depth] and state.key[depth] != best.key[depth]
        if is_beside and state.key[depth] in usual and best.key[depth] not in USUAL_KEYS and not one.is_whole:
            return state, one
    return None


def _beside_the_key_of(best: StateDict, states: list[StateDict], slots: Mapping[str, Wanted], rules: Rules) -> str | None:
    """How to choose weights that lie in a dictionary beside the key of those that fit: {**model.state_dict(), "teacher": …}."""
    for outer in (state for state in states if state.is_around(best)):
        inner = dict.fromkeys(f"{state.key[len(outer.key)]}." for state in states if outer.is_around(state))
        flat = {name: record for name, record in outer.tensors.items() if not name.startswith(tuple(inner))}
        one = fit(slots, flat, rules)
        if flat and one.is_whole and (best.is_averaged or not any(map(is_averaged_key, one.removed.split(".")))):
            names = f"prefix={one.removed!r}" if one.removed else f"allow_unexpected={[prefix + '*' for prefix in inner]}"
            return f"key={outer.label!r} with {names}"
    return None


def _distance(one: Fit) -> tuple[int, int]:
    """How far it is from fitting. If no name agrees, unexpected names do not count: else a few numbers beside the weights would win."""
    return len(one.missing) + len(one.wrong), one.faults if one.pairs or one.wrong else 0


def _none_fits(path: Path, state: StateDict, one: Fit, slots: Mapping[str, Wanted], rules: Rules) -> CheckpointError:
    """The error if no set of weights fits: both sides, and the argument to pass if a part of the names would fit."""
    if rules.prefix and not any(below(name, rules.prefix) for name in state.tensors):
        raise _no_name_below(path, rules.prefix, state)
    prefixes = _prefixes_that_fit(state, slots, rules) if rules.prefix is None else []
    steps = tuple(f"prefix={prefix!r} takes what is below it, which fits" for prefix in prefixes)
    parts = [] if one.pairs else _parts_it_fits(state, slots, rules)[:_MAX_PARTS]
    steps += tuple(f"load_weights(model.get_submodule({part!r}), …): that part it fits" for part in parts)
    is_beside = bool(prefixes) and one.faults == sum(name.startswith(tuple(prefixes)) for name in one.unexpected)
    if is_beside:  # nothing else is wrong, so without them it fits as well
        steps = (f"allow_unexpected={[prefix + '*' for prefix in prefixes]} takes what is beside that, which fits", *steps)
    if len(prefixes) > 1 or is_beside:
        return CheckpointError("RW735", f"{path} holds several sets of weights that fit, side by side", next=steps)
    return _mismatch(path, state, one, slots, steps)


def _no_name_below(path: Path, prefix: str, state: StateDict) -> CheckpointError:
    begin = dict.fromkeys(name.partition(".")[0] for name in state.tensors)
    return CheckpointError("RW735", f"no name in {path} begins with {prefix!r}", why=f"they begin with {', '.join(list(begin)[:_SHOWN])}")


def _parts_it_fits(state: StateDict, slots: Mapping[str, Wanted], rules: Rules) -> list[str]:
    """The outermost parts of the model that this set of weights fits as a whole: a backbone below a new head."""
    counts = Counter(prefix for name in slots for prefix in _outer_parts(name))
    found: list[str] = []
    for prefix in [each for each, count in counts.items() if count == len(state.tensors)][:_MAX_PREFIXES]:
        part = {name.removeprefix(prefix): slot for name, slot in slots.items() if name.startswith(prefix)}
        if not prefix.startswith(tuple(f"{one}." for one in found)) and fit(part, state.tensors, rules).is_full:
            found.append(prefix[:-1])
    return found


def _prefixes_that_fit(state: StateDict, slots: Mapping[str, Wanted], rules: Rules) -> list[str]:
    """The outermost prefixes with a whole set of weights below them. A prefix that too few names have is not tried."""
    prefixes: dict[str, None] = {}
    counts: Counter[str] = Counter()
    for name in state.tensors:
        prefixes |= dict.fromkeys(_outer_parts(name))
        counts.update({*_outer_parts(name), *_outer_parts(bare(name))})
    wanted = {
        slot.identity for name, slot in slots.items() if not (name.endswith("num_batches_tracked") or may_be_missing(name, {}, rules))
    }
    likely = [prefix for prefix in prefixes if counts[prefix] >= len(wanted) and not any(map(is_training_key, prefix.split(".")))]
    found: list[str] = []
    for prefix in sorted(likely, key=lambda text: text.count("."))[:_MAX_PREFIXES]:
        if not prefix.startswith(tuple(found)) and fit(slots, state.tensors, replace(rules, prefix=prefix)).is_whole:
            found.append(prefix)
    return found


def _outer_parts(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:depth]) + "." for depth in range(1, min(len(parts), 4))]


def _found_text(states: list[StateDict]) -> str:
    if not states:
        return "there is no tensor in it"
    return f"tensors were found under {', '.join(repr(state.label) for state in states[:8])}, whose names are not those of weights"


def _key_steps(states: list[StateDict]) -> tuple[str, ...]:
    outer = [state for state in states if state.key and not any(other.key and other.is_around(state) for other in states)]
    return (f"if they are the weights: {', '.join(f'key={state.label!r}' for state in outer[:4])}",) if outer else ()


def _mismatch(path: Path, state: StateDict, one: Fit, slots: Mapping[str, Wanted], steps: tuple[str, ...] = ()) -> CheckpointError:
    """The error with both sides of every disagreement, and the nearest name for each missing one."""
    if one.ambiguous:
        names = ", ".join(one.ambiguous[:_SHOWN])
        summary = f"several names in {path} are the same once they are joined and wrappers are taken off"
        return CheckpointError("RW734", summary, why=f"among them {names}; rename one of the modules", next=steps)
    facts = [f"{len(one.missing)} of {len(slots)} names of the model are missing"] if one.missing else []
    facts += [f"{len(one.wrong)} have another shape or kind of number"] if one.wrong else []
    facts += [f"{len(one.unexpected)} names of the checkpoint are unknown to the model"] if one.unexpected else []
    under = f" under {state.label!r}" if state.key else ""
    summary = f"{path} does not fit the model: {', '.join(facts)}"
    return CheckpointError("RW734", summary, why="\n".join(_rows(one, state, slots, under)), next=(*steps, *_steps(path, one)))


def _rows(one: Fit, state: StateDict, slots: Mapping[str, Wanted], under: str) -> list[str]:
    shown = one.missing[:_SHOWN]
    near = nearest_names(one, slots, state.tensors, shown)
    table = [("model", f"checkpoint{under}")]
    for name in shown:
        table.append((_text(name, slots), f"missing; nearest: {_text(near[name], state.tensors)}" if name in near else "missing"))
    table += [(_text(ours, slots), _text(theirs, state.tensors)) for ours, theirs in list(one.wrong.items())[:_SHOWN]]
    others = [name for name in one.unexpected if name not in near.values()][:_SHOWN]
    table += [("unknown", _text(name, state.tensors)) for name in others]
    left_out = len(one.missing) + len(one.wrong) + len(one.unexpected) - len(table) + 1 - len(set(near.values()))
    width = min(max(len(left) for left, _ in table), 60)
    rows = [f"{_cut(left):<{width}}  {_cut(right)}" for left, right in table]
    return rows + ([f"and {left_out:,} more"] if left_out > 0 else [])


def _steps(path: Path, one: Fit) -> tuple[str, ...]:
    normed = {as_old_weight_norm(name)[-2:] for name in one.unexpected}
    if one.missing and {"_g", "_v"} <= normed:
        return ("its weights are normed: apply torch.nn.utils.parametrizations.weight_norm to the model, load, and remove it again",)
    if any(_ADAPTER.search(name) for name in one.unexpected):
        return ("lora_ is an adapter, which changes the weights: load both with peft, merge_and_unload(), save that",)
    if any(map(is_scale, one.unexpected)):
        return (DEQUANTIZE,)
    if one.missing and _SHARD.search(path.name):
        return (f"it is one of several files: give their folder, {path.parent}",)
    if not one.missing and not one.wrong:
        return ("if those names may be left out: allow_unexpected=('pattern*',)",)
    if not one.unexpected:
        return ("if those parameters are to keep their initial values: allow_missing=('pattern*',)",)
    return ()


def _text(name: str, side: Mapping[str, Wanted | TensorRecord]) -> str:
    return f"{name} {side[name].dtype}{list(side[name].shape)}"


def _cut(text: str) -> str:
    return text if len(text) <= 100 else f"{text[:50]}…{text[-49:]}"
