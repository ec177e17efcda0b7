"""What a model writes to its inputs is gone before the next task, whether or not the kernel tells what was written to."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from rankwise.pool.memory.shared_memory import Segment  # noqa: E402
from rankwise.pool.workers import lanes  # noqa: E402
from rankwise.pool.workers.lanes import Inputs, open_pagemap  # noqa: E402

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
