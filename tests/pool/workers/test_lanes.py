"""What a model writes to its inputs is gone before the next task, whether or not the kernel tells what was written to."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from rankwise.pool.memory.encoding import EVEN  # noqa: E402
from rankwise.pool.memory.shared_memory import Segment  # noqa: E402
from rankwise.pool.workers import lanes  # noqa: E402
from rankwise.pool.workers.lanes import Inputs, open_pagemap, requests_of  # noqa: E402

SIZE = 64 << 10


@pytest.mark.parametrize("has_pagemap", [True, False])
def test_writes_are_forgotten_and_reads_cost_nothing(has_pagemap: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_pagemap:
        monkeypatch.setattr(lanes, "open_pagemap", lambda: -1)
    lane = Segment.create(SIZE, "test-lane")
    seen = Inputs()
    seen.add_segment(os.dup(lane.fd), SIZE)
    try:
        lane.view[:] = 1
        tensor = seen.get((0, 0, SIZE), "uint8", (SIZE,), True)
        assert int(tensor.sum()) == SIZE
        assert (seen.alias(tensor) is not None) == has_pagemap  # it may be given back as it is, if that is known to be what it was
        tensor[SIZE // 2] = 5
        assert seen.alias(tensor) is None
        del tensor
        seen.finish()

        lane.view[:] = 2
        again = seen.get((0, 0, SIZE), "uint8", (SIZE,), True)
        assert int(again.sum()) == 2 * SIZE
        del again
        seen.finish()
    finally:
        lane.close()
        if seen.pagemap >= 0:
            os.close(seen.pagemap)


def test_a_pagemap_that_tells_nothing_is_not_believed(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    assert open_pagemap(str(tmp_path / "empty")) == -1
    assert open_pagemap(str(tmp_path / "none")) == -1
    assert open_pagemap("/dev/zero") == -1  # all clean, whatever was written


@pytest.mark.parametrize(
    ("dtype", "shape"), [("float32", (1, 10)), ("int64", ()), ("bool", (3,)), ("bfloat16", (2, 3)), ("float32", (0, 4))]
)
def test_arrays_of_one_message_are_apart_and_begin_where_torch_lets_tensors_begin(dtype: str, shape: tuple[int, ...]) -> None:
    kind = getattr(torch, dtype)
    sent = torch.randint(0, 2, (5, *shape)).to(kind)
    data = sent.view(torch.uint8).numpy().tobytes() if sent.numel() and sent.dim() > 1 else sent.numpy().tobytes()

    count, request = requests_of((EVEN, dtype, shape, 5, data), lambda *_: None)
    got = [request(i)[0] for i in range(count)]
    got[1].fill_(1)

    assert [tensor.dtype for tensor in got] == [kind] * 5 and [tuple(tensor.shape) for tensor in got] == [shape] * 5
    assert all(torch.equal(got[i], sent[i]) for i in (0, 2, 3, 4))
    assert not sent.numel() or all(tensor.data_ptr() % 64 == 0 and tensor.is_contiguous() for tensor in got)
    assert all(not tensor.storage_offset() and tensor.untyped_storage().nbytes() == tensor.nbytes for tensor in got)
