"""What the rest of the probe tells the audit: something began or ended."""

from typing import Any

from .. import sites
from . import data, local_gradients, loss, models, record, spans, steps, times, window


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
    spans.flush()
