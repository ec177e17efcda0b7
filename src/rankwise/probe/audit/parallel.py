"""Notes `nn.DataParallel`, and what goes through DDP: the forwards' inputs, to compare them between ranks."""

from types import ModuleType
from typing import Any

from .. import hooks, sites
from . import data, local, prints, record, steps, window

_num_forwards = 0


def attach(module: ModuleType) -> None:
    """After `torch.nn.parallel.data_parallel`."""
    if record.is_on():
        module.DataParallel.__init__ = record.noted_init(module.DataParallel.__init__, _note_built)


@record.paid
def _note_built(wrapper: Any, frame: Any) -> None:
    hooks.come_aboard()
    record.write("data_parallel", site=sites.number_of_caller(frame), devices=len(getattr(wrapper, "device_ids", ()) or ()))


@record.paid
def forward(wrapper: Any, inputs: Any, kwargs: Any, mode: str | None, site: Any) -> None:
    """A forward through DDP begins; `mode` says how it differs from one of plain training."""
    global _num_forwards
    window.forward(mode)
    if record.is_awake and mode in (None, "no_sync") and record.is_sampled(steps.steps_so_far()):
        local.watch(wrapper)
    n = _num_forwards
    _num_forwards += 1
    if not record.is_sampled(n):
        return
    fields = data._fields([*inputs, kwargs])
    record.write(
        "forward",
        n=n,
        site=sites.number_of_caller(site),
        with_grad=mode is None or "no_grad" not in mode,
        training=bool(wrapper.module.training),
        sums=[found[0] if found else None for found in prints.fingerprints(fields)],
        shape=list(fields[0].shape)[:4] if fields else [],
        numel=sum(t.numel() for t in fields),
        backwards=window.backwards,
    )
