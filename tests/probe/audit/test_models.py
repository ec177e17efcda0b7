"""What is known of the models that DDP wraps: what it reduces of them, and what it was told to leave alone."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

from rankwise.probe.audit import models, record


class Wrapper(nn.Module):
    """As DDP holds a module, without a group."""

    def __init__(self, module: nn.Module, ignored: tuple[str, ...] = (), **facts: Any) -> None:
        super().__init__()
        self.module, self.parameters_to_ignore = module, set(ignored)
        for name, value in facts.items():
            setattr(self, name, value)


@pytest.fixture(autouse=True)
def lines(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    written: list[dict[str, Any]] = []
    monkeypatch.setattr(models, "known", [])
    monkeypatch.setattr(record, "write", lambda what, /, **facts: written.append({"a": what, **facts}))
    yield written


def net() -> nn.Module:
    made = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
    made[0].bias.requires_grad_(False)
    return made


def test_what_is_reduced_is_what_trains_and_was_not_left_out(lines: list[dict[str, Any]]) -> None:
    wrapper = Wrapper(net(), ("2.bias", "1.running_mean"), bucket_bytes_cap=25 << 20)
    models.wrapped(wrapper, 7)

    named = models.names()
    assert {name for name, is_reduced in named.values() if is_reduced} == {"0.weight", "1.weight", "1.bias", "2.weight"}
    assert len(named) == 6 and models.own() == {id(wrapper.module[2].bias)}
    assert [name for name, _ in models.known[0].buffers()] == ["1.running_var", "1.num_batches_tracked"]
    (line,) = lines
    assert (line["site"], line["reduced"], line["bytes"], line["cap"], line["ranks"]) == (7, 4, 4 * (6 + 3 + 3 + 3 + 1), 25 << 20, [])


def test_a_model_the_user_lets_go_is_not_held() -> None:
    wrapper = Wrapper(net())
    models.wrapped(wrapper, 7)
    del wrapper

    assert models.names() == {} and models.known[0].wrapper is None and models.known[0].buffers() == []


def test_what_changes_how_often_gradients_are_averaged_is_seen() -> None:
    plain = Wrapper(net(), _join_config=SimpleNamespace(enable=False), _comm_hooks=[])
    models.wrapped(plain, 1)
    assert not models.is_joining() and not models.has_hook()

    plain._join_config.enable = True
    plain._comm_hooks = [print]
    assert models.is_joining() and models.has_hook()
