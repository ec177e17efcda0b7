"""Fingerprints: equal for equal numbers, whatever holds them; none for what cannot be read without changing something."""

from __future__ import annotations

import math

import pytest
import torch

from rankwise.probe.audit import fingerprints, record
from rankwise.probe.audit.fingerprints import PendingNumbers, is_plain, of_bytes, of_numbers, sample


def of(tensor: torch.Tensor | None) -> fingerprints.Fingerprint | None:
    return of_numbers(PendingNumbers([tensor]).numbers()[0])


def test_equal_numbers_have_equal_fingerprints_and_others_have_not() -> None:
    assert of(torch.arange(6.0)) == of(torch.arange(6.0).reshape(2, 3)) == of(torch.arange(6))
    assert of(torch.arange(6.0)) != of(torch.arange(6.0).flip(0)) and of(torch.arange(6.0)) != of(torch.arange(7.0))


def test_the_norm_is_that_of_the_numbers_and_none_where_one_is_not_finite() -> None:
    assert of(torch.tensor([3.0, 4.0]))[1] == 5.0
    assert of(torch.tensor([3.0, math.inf]))[1] is None and of(torch.tensor([math.nan]))[1] is None


@pytest.mark.parametrize(("size", "taken"), [(64, 64), (65, 32), (10_000, 32)])
def test_of_large_tensors_a_few_dozen_numbers_are_taken(size: int, taken: int) -> None:
    numbers = PendingNumbers([torch.arange(float(size))]).numbers()[0]

    assert numbers is not None and len(numbers) == taken
    assert numbers[1] == (1 if size == 64 else size // 32)


def test_channels_last_is_read_in_the_order_of_its_memory_and_a_large_copy_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    image = torch.arange(24.0).reshape(1, 2, 3, 4)

    assert of(image.contiguous(memory_format=torch.channels_last)) == of(image.permute(0, 2, 3, 1).contiguous())
    turned = torch.arange(6.0).reshape(2, 3).t()
    assert of(turned) == of(turned.contiguous())
    monkeypatch.setattr(fingerprints, "_COPIED", 5)
    assert of(turned) is None


@pytest.mark.parametrize(
    "tensor",
    [None, torch.empty(0), torch.empty(3, device="meta"), torch.eye(3).to_sparse()],
    ids=["none", "empty", "meta", "sparse"],
)
def test_what_cannot_be_read_has_no_fingerprint(tensor: torch.Tensor | None) -> None:
    assert of(tensor) is None and sample(tensor) is None


def test_several_tensors_are_read_at_once_each_with_its_own_numbers() -> None:
    pending = PendingNumbers([torch.ones(2), None, torch.zeros(3, dtype=torch.int64), torch.tensor([1 + 2j])])

    assert pending.have_arrived() and pending.numbers() == [[1.0, 1.0], None, [0.0, 0.0, 0.0], [1.0, 2.0]]


def test_only_tensors_of_their_own_memory_are_plain() -> None:
    class Own(torch.Tensor):
        pass

    assert is_plain(torch.ones(1)) and is_plain(torch.nn.Parameter(torch.ones(1)))
    assert not is_plain(torch.ones(1).as_subclass(Own))


def test_nothing_is_read_while_torch_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._C, "_len_torch_dispatch_stack", lambda: 1)

    assert sample(torch.ones(2)) is None and of(torch.ones(2)) is None


def test_tensors_that_may_not_be_read_now_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "may_read", lambda tensor: tensor.numel() > 1)

    assert [one is None for one in fingerprints.of_tensors([torch.ones(2), torch.ones(1), None])] == [False, True, True]


def test_bytes_have_a_checksum_without_numpy_too() -> None:
    class WithoutNumpy:
        def numpy(self) -> None:
            raise RuntimeError("Numpy is not available")

        def tolist(self) -> list[int]:
            return [1, 2, 3]

    assert (
        of_bytes(torch.tensor([1, 2, 3], dtype=torch.uint8)) == of_bytes(WithoutNumpy()) != of_bytes(torch.tensor([1], dtype=torch.uint8))
    )
