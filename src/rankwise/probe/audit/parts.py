"""Ties the audit to the probe's other parts: what they call when something begins or ends."""

import time
from typing import Any

from .. import sites
from . import data, files, local, loss, models, parallel, record, reduces, spans, steps, times, window


def joined() -> None:
    """This process has joined a job."""
    if record.is_on():
        files.listen()


@record.paid
def ddp_built(wrapper: Any, frame: Any) -> None:
    models.wrapped(wrapper, sites.number_of_caller(frame))
    window.watch([p for p in wrapper.module.parameters() if p.requires_grad])


@record.paid
def backward_begins(args: Any, kwargs: Any, frame: Any) -> None:
    window.backward_begins(frame)
    loss.take(args[0] if args else kwargs.get("tensors"), steps.steps_so_far(), frame)


@record.paid
def backward_ended(frame: Any) -> None:
    local.forget()
    window.backward(frame)


@record.paid
def process_ends() -> None:
    if data.is_worker():
        record.flush()
        return
    steps.at_end()
    times.at_end()
    value, count = loss.mean()
    record.write(
        "end", spent_ms=round(record.spent_ns() / 1e6, 3), loss=value, losses=count, forwards=window.forwards, backwards=window.backwards
    )
    record.flush()
    spans.flush()


forward = parallel.forward
reduced = reduces.note
now_ns = time.perf_counter_ns
