"""Says, in one finding, how a checkpoint and a model disagree: both sides of everything, and the nearest name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rankwise.weights.matching import Fit, Slot, nearest_names
from rankwise.weights.names import as_old_weight_norm
from rankwise.weights.records import CheckpointError, TensorRecord
from rankwise.weights.state_dicts import StateDict

_SHOWN = 6  # rows of each kind in a finding


def mismatch(path: Path, state: StateDict, one: Fit, slots: Mapping[str, Slot], steps: tuple[str, ...] = ()) -> CheckpointError:
    """Both sides of every disagreement, and the nearest name of each that is missing."""
    if one.ambiguous:
        names = ", ".join(one.ambiguous[:_SHOWN])
        summary = f"several names in {path} are the same once they are joined and wrappers are taken off"
        return CheckpointError("RW734", summary, why=f"among them {names}; rename one of the modules", next=steps)
    facts = [f"{len(one.missing)} of {len(slots)} names of the model are missing"] if one.missing else []
    facts += [f"{len(one.wrong)} have another shape or kind of number"] if one.wrong else []
    facts += [f"{len(one.unexpected)} names of the checkpoint are unknown to the model"] if one.unexpected else []
    under = f" under {state.label!r}" if state.key else ""
    summary = f"{path} does not fit the model: {', '.join(facts)}"
    return CheckpointError("RW734", summary, why="\n".join(_rows(one, state, slots, under)), next=(*steps, *_steps(one)))


def _rows(one: Fit, state: StateDict, slots: Mapping[str, Slot], under: str) -> list[str]:
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


def _steps(one: Fit) -> tuple[str, ...]:
    normed = {as_old_weight_norm(name)[-2:] for name in one.unexpected}
    if one.missing and {"_g", "_v"} <= normed:
        return ("its weights are normed: apply torch.nn.utils.parametrizations.weight_norm to the model, load, and remove it again",)
    if not one.missing and not one.wrong:
        return ("if those names may be left out: allow_unexpected=('pattern*',)",)
    if one.missing and not one.unexpected and not one.wrong:
        return ("if those parameters are to keep their initial values: allow_missing=('pattern*',)",)
    return ()


def _text(name: str, side: Mapping[str, Slot | TensorRecord]) -> str:
    return f"{name} {side[name].dtype}{list(side[name].shape)}"


def _cut(text: str) -> str:
    return text if len(text) <= 100 else f"{text[:50]}…{text[-49:]}"
