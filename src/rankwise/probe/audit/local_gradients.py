"""Samples the gradients of a few parameters as this rank computed them, before DDP reduces them, where autograd adds them up."""

from typing import Any

import torch

from . import fingerprints, models, record

_MOST = 2  # parameters: the first and the last that DDP reduces

_handles: list[Any] = []
_taken: dict[str, Any] = {}  # parameter's name: some numbers of its gradient, on its own device


def watch(wrapper: Any) -> None:
    """Hook two parameters before a training forward of a sampled step: on autograd's nodes, so that no object of the user's has a hook."""
    forget()
    if torch.compiler.is_compiling():
        return
    one = next((known for known in models.known if known.wrapper is wrapper), None)
    named = [(name, p) for name, p in one.named() if id(p) in one.reduced and p.requires_grad] if one is not None else []
    with torch.enable_grad():
        for name, p in [*named[:1], *named[1:][-1:]][:_MOST]:
            node = p.expand_as(p).grad_fn.next_functions[0][0] if fingerprints.is_plain(p) else None
            if node is not None:
                _handles.append(node.register_prehook(_noting(name)))


def _noting(name: str) -> Any:
    @record.budgeted
    def note(grads: Any) -> None:
        numbers = fingerprints.sample(grads[0])
        if numbers is not None:
            _taken[name] = numbers.clone()

    return note


def forget() -> None:
    """Remove the hooks after the backward."""
    for handle in _handles:
        handle.remove()
    _handles.clear()


def taken() -> dict[str, Any]:
    """Some numbers of each gradient that was taken since the last step, by parameter."""
    found = dict(_taken)
    _taken.clear()
    return found
