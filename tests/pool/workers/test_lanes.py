"""What a model writes to its inputs is gone before the next task, whether or not the kernel tells what was written to;
replicas whose weights are the same read one copy of them, and what one writes stays with it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from rankwise.pool import Model, Pool  # noqa: E402
from rankwise.pool.memory.encoding import EVEN  # noqa: E402
from rankwise.pool.memory.exceptions import failure  # noqa: E402
from rankwise.pool.memory.shared_memory import Segment  # noqa: E402
from rankwise.pool.workers import lanes  # noqa: E402
from rankwise.pool.workers.lanes import Inputs, open_pagemap, requests_of, share_weights  # noqa: E402

HERE = "tests.pool.models"
FILE = "memfd:rankwise-weights"
SIZE = 64 << 10


@pytest.mark.parametrize("has_pagemap", [True, False])
def test_writes_are_forgotten_and_reads_cost_nothing(has_pagemap: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_pagemap:
        monkeypatch.setattr(lanes, "open_pagemap", lambda: -1)
    lane = Segment.create(SIZE, "test-lane")
    seen = Inputs()
    seen.add_segment([os.dup(lane.fd)], SIZE)
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


def test_a_segment_that_cannot_be_had_keeps_its_number() -> None:
    lane = Segment.create(SIZE, "test-lane")
    seen = Inputs()
    try:
        lane.view[:] = 3
        seen.add_segment([], SIZE)  # no descriptor was left
        seen.add_segment([os.dup(lane.fd)], SIZE)
        with pytest.raises(OSError, match="an input cannot be read in the worker: Too many open files"):
            seen.get((0, 0, SIZE), "uint8", (SIZE,), True)
        assert seen.lacks_segment and seen.raw((1, 0, 4)) == b"\3\3\3\3"
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


@pytest.fixture
def fd() -> Iterator[int]:
    made = os.memfd_create("rankwise-weights-of-a-test")
    yield made
    os.close(made)


def layers(seed: int = 0) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 128)).eval()


def is_shared(parameter: torch.Tensor) -> bool:
    """Whether it lies in a mapped file in memory."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, stop = (int(bound, 16) for bound in line.split()[0].split("-"))
        if start <= parameter.data_ptr() < stop:
            return FILE in line
    return False


def test_equal_weights_are_read_from_one_file_and_compute_the_same_bits(fd: int) -> None:
    x, plain = torch.rand(3, 256), layers()
    replicas = [layers(), layers()]
    for replica in replicas:
        share_weights(replica, fd)
    for replica in replicas:
        assert is_shared(replica[0].weight) and is_shared(replica[2].weight)
        assert not is_shared(replica[0].bias)  # small
        assert torch.equal(replica(x), plain(x))


def test_what_one_replica_writes_stays_with_it(fd: int) -> None:
    first, second, third = layers(), layers(), layers()
    share_weights(first, fd)
    share_weights(second, fd)
    with torch.no_grad():
        first[0].weight.zero_()
    share_weights(third, fd)
    assert torch.equal(second[0].weight, layers()[0].weight)
    assert torch.equal(third[0].weight, layers()[0].weight)
    assert not first[0].weight.any()


def test_a_model_that_resizes_shared_memory_is_told_how_to_get_its_own(fd: int) -> None:
    model = layers()
    share_weights(model, fd)

    with pytest.raises(RuntimeError) as raised:
        next(model.parameters()).untyped_storage().resize_(0)

    assert "replicas=1" in failure(raised.value)[1]


def test_a_parameter_that_differs_is_kept(fd: int) -> None:
    share_weights(layers(), fd)
    other = layers()
    with torch.no_grad():
        other[2].weight[5, 7] += 1
    expected = other[2].weight.detach().clone()
    share_weights(other, fd)
    assert is_shared(other[0].weight) and not is_shared(other[2].weight)
    assert torch.equal(other[2].weight, expected)


def test_another_model_keeps_all_of_its_own(fd: int) -> None:
    share_weights(layers(), fd)
    other = torch.nn.Linear(512, 512)
    share_weights(other, fd)
    assert not is_shared(other.weight)


def test_a_file_that_was_not_finished_is_not_read(fd: int) -> None:
    os.ftruncate(fd, 4 * 256 * (256 + 128))  # as a replica leaves it that died while it wrote
    model = layers()
    share_weights(model, fd)
    assert not is_shared(model[0].weight) and torch.equal(model[0].weight, layers()[0].weight)


def test_memory_that_something_else_refers_to_stays(fd: int) -> None:
    model = layers()
    kept = model[0].weight.detach().t()
    share_weights(model, fd)
    with torch.no_grad():
        model[0].weight.zero_()
    assert not kept.any()
    assert is_shared(model[2].weight)


def over(array: np.ndarray) -> torch.nn.Module:
    model = layers()
    model[0].weight = torch.nn.Parameter(torch.from_numpy(array))
    return model


def test_memory_that_torch_has_not_made_or_that_is_held_by_itself_stays(fd: int, tmp_path: Path) -> None:
    array, file = np.ones((256, 256), np.float32), tmp_path / "table"
    array.tofile(file)
    mapped = torch.from_file(str(file), shared=True, size=array.size).view(256, 256).numpy()
    others = layers()
    others.share_memory()
    models = [over(array), over(mapped), others, layers()]
    storage = models[-1][0].weight.untyped_storage()
    for model in models:
        before = model[0].weight.data_ptr()
        os.ftruncate(fd, 0)
        share_weights(model, fd)
        assert model[0].weight.data_ptr() == before
    assert is_shared(models[-1][2].weight) and storage.nbytes()


def test_a_program_was_loaded_to_memory_of_its_own(fd: int, tmp_path: Path) -> None:
    torch.export.save(torch.export.export(layers(), (torch.rand(1, 256),)), tmp_path / "layers.pt2")
    model = torch.export.load(tmp_path / "layers.pt2").module()
    share_weights(model, fd, is_program=True)
    x = torch.rand(1, 256)
    assert any(map(is_shared, model.parameters())) and torch.equal(model(x), layers()(x))


def test_what_is_copied_goes_back_before_the_next_is(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = torch.nn.ParameterList([torch.ones(10 << 20) for _ in range(5)])  # 40 MB each, which the allocator gives back by themselves
    held = []

    def noted(*args: object) -> None:
        write(*args)
        held.append(int(Path("/proc/self/status").read_text().split("RssAnon:")[1].split()[0]) >> 10)

    write = lanes._write
    monkeypatch.setattr(lanes, "_write", noted)
    share_weights(model, fd)
    assert held[0] - held[-1] > 100


def test_tied_parameters_and_views_of_one_block_stay_together(fd: int) -> None:
    def tied() -> torch.nn.Module:
        model = layers()
        block = torch.arange(2 * 256 * 256, dtype=torch.float32)
        model.a = torch.nn.Parameter(block[: 256 * 256].view(256, 256))
        model.b = torch.nn.Parameter(block[256 * 256 :].view(256, 256).t())
        model[0].weight = model.a
        return model

    share_weights(tied(), fd)
    model, plain = tied(), tied()
    share_weights(model, fd)
    assert is_shared(model.a) and is_shared(model.b) and model[0].weight is model.a
    assert torch.equal(model.a, plain.a) and torch.equal(model.b, plain.b)
    assert model.b.stride() == plain.b.stride()


@pytest.mark.parametrize(
    "module",
    [
        lambda: torch.nn.Linear(300, 300, dtype=torch.bfloat16),
        lambda: torch.nn.Linear(300, 300, dtype=torch.complex64),
        lambda: torch.jit.script(torch.nn.Linear(300, 300)),
        lambda: torch.nn.LSTM(128, 128, 2),
        lambda: torch.nn.LazyLinear(10),
        lambda: torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(300, 300)),
    ],
)
def test_modules_of_other_kinds_keep_their_values(fd: int, module: object) -> None:
    def made() -> torch.nn.Module:
        torch.manual_seed(3)
        return module()  # type: ignore[operator]

    share_weights(made(), fd)
    model, plain = made(), made()
    share_weights(model, fd)
    for mine, theirs in zip(model.parameters(), plain.parameters()):
        assert isinstance(mine, torch.nn.parameter.UninitializedParameter) or torch.equal(mine, theirs)


def files_of(pid: int | str) -> int:
    return sum(f"{FILE} " in os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir() if entry.is_symlink())


def test_workers_of_a_pool_share_until_the_model_leaves() -> None:
    x, before = np.random.default_rng(0).random((1, 64), np.float32), files_of("self")
    with Pool({"wide": Model(f"{HERE}:wide_layers", replicas=2)}, workers=2) as pool:
        pool.load("wide").result()
        maps = [Path(f"/proc/{worker['pid']}/maps").read_text() for worker in pool.stats()["workers"]]
        assert all(FILE in text for text in maps)
        assert len(set(map(bytes, pool.map("wide", [x] * 8)))) == 1
        assert files_of("self") == before + 1
        pool.remove("wide")
        end = time.monotonic() + 60
        while files_of("self") > before:
            assert time.monotonic() < end
            time.sleep(0.01)
