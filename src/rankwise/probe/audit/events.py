"""Events that the rest of the probe reports to the audit: a forward, a backward or a step began or ended."""

from types import ModuleType
from typing import Any

from .. import hooks, recording, sites
from . import data, fingerprints, local_gradients, loss, models, record, steps, times, window

_num_forwards = 0


def attach(module: ModuleType) -> None:
    module.DataParallel.__init__ = hooks.wrap(module.DataParallel.__init__, after=_note_built)


@record.budgeted
def _note_built(frame: Any, _: None, wrapper: Any, *args: Any, **kwargs: Any) -> None:
    recording.start()
    record.write("data_parallel", site=sites.number_of_caller(frame), devices=len(getattr(wrapper, "device_ids", ()) or ()))


@record.budgeted
def forward(wrapper: Any, inputs: Any, kwargs: Any, mode: str | None, site: Any) -> None:
    """A forward through DDP begins; `mode` says how it differs from one of plain training."""
    global _num_forwards
    window.forward(mode)
    if record.is_step_observed and mode in (None, "no_sync") and record.is_sampled(steps.steps_so_far()):
        local_gradients.watch(wrapper)
    n = _num_forwards
    _num_forwards += 1
    if not record.is_sampled(n):
        return
    fields = data.first_tensors([*inputs, kwargs])
    record.write(
        "forward",
        n=n,
        site=sites.number_of_caller(site),
        with_grad=mode is None or "no_grad" not in mode,
        training=bool(wrapper.module.training),
        sums=[found[0] if found else None for found in fingerprints.of_tensors(fields)],
    )


@record.budgeted
def ddp_built(wrapper: Any, frame: Any) -> None:
    models.wrapped(wrapper, sites.number_of_caller(frame))
    window.watch([p for p in wrapper.module.parameters() if p.requires_grad])


@record.budgeted
def backward_begins(args: Any, kwargs: Any, frame: Any) -> None:
    window.backward_begins(frame)
    loss.take(args[0] if args else kwargs.get("tensors"), steps.steps_so_far(), frame)


@record.budgeted
def backward_ended(frame: Any) -> None:
    local_gradients.forget()
    window.backward(frame)


@record.budgeted
def process_ends() -> None:
    if data.is_worker():
        record.flush()
        return
    steps.at_end()
    times.at_end()
    value, count = loss.mean()
    record.write("end", loss=value, losses=count)
    record.flush()
    times.flush_spans()
