"""What goes in comes out: every dtype, shape, layout and structure, at every size around the borders of messages, pages and lanes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from rankwise.errors import UsageError  # noqa: E402
from rankwise.pool import Model, Pool, PoolClosed  # noqa: E402
from rankwise.pool.memory.encoding import SHARED, TORCH_ONLY, pack, unpack  # noqa: E402

HERE = "tests.pool.models"
TORCH_NAMES = [name for name in (*SHARED, *TORCH_ONLY) if hasattr(torch, name)]
BORDERS = [0, 1, 4095, 4096, 4097, 8191, 8192, 8193, 65535, 65536, 65537, 262143, 262144, 262145, 8 << 20, (8 << 20) + 1]
usual = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    names = ("echo", "in_place", "keeper", "changing_keeper")
    with Pool({name: Model(f"{HERE}:{name}") for name in names}, workers=1) as pool:
        yield pool


def filled(dtype: str, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    kind = getattr(torch, dtype)
    generator = torch.Generator().manual_seed(seed)
    raw = torch.randint(0, 120, shape, generator=generator)
    if dtype == "complex32":
        return torch.view_as_complex(torch.stack([raw, -raw], -1).to(torch.float16))
    return (raw % 2 == 0) if kind is torch.bool else raw.to(kind)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        if not isinstance(b, torch.Tensor) or a.dtype != b.dtype or a.shape != b.shape:
            return False
        return (
            a.resolve_conj().contiguous().view(-1).view(torch.uint8).equal(b.contiguous().view(-1).view(torch.uint8)) if a.numel() else True
        )
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and a.shape == b.shape and bool(np.array_equal(a, b))
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return type(b) is dict and list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    return type(a) is type(b) and a == b


shapes = st.one_of(
    st.just(()), st.lists(st.integers(0, 5), min_size=1, max_size=4).map(tuple), st.sampled_from([(3, 1000), (70_001,), (5, 7, 611)])
)
tensors = st.builds(filled, st.sampled_from(TORCH_NAMES), shapes, st.integers(0, 1000))
plain = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=20), st.binary(max_size=20))
nested = st.recursive(
    tensors | plain,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.lists(inner, max_size=3).map(tuple), st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


@usual
@given(value=nested)
def test_nested_values_come_back_as_they_were(pool: Pool, value: Any) -> None:
    assert same(value, pool.submit("echo", value).result(60))


@usual
@given(dtype=st.sampled_from(SHARED), shape=shapes, seed=st.integers(0, 1000))
def test_arrays_come_back_as_arrays(pool: Pool, dtype: str, shape: tuple[int, ...], seed: int) -> None:
    array = filled(dtype, shape, seed).numpy()
    assert same(array, pool.submit("echo", array).result(60))


@pytest.mark.parametrize("nbytes", BORDERS)
def test_sizes_around_every_border(pool: Pool, nbytes: int) -> None:
    value = torch.arange(nbytes, dtype=torch.int64).to(torch.uint8)
    first, second = pool.submit("echo", value), pool.submit("echo", value + 1)

    assert first.result(60).equal(value)
    assert second.result(60).equal(value + 1)


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.t(),
        lambda t: t[::2, ::3],
        lambda t: t.flip(0),
        lambda t: t[:, 3],
        lambda t: t.expand(2, *t.shape),
        lambda t: t.requires_grad_(),
        lambda t: t.to(torch.complex64).conj(),
        lambda t: t.to(torch.complex64).conj().imag,
        lambda t: t.to(torch.bfloat16).t(),
    ],
)
def test_layouts_that_are_not_plain_memory(pool: Pool, change: Any) -> None:
    for size in (8, 200):
        value = change(torch.arange(float(size * size)).view(size, size))
        assert pool.submit("echo", value).result(60).equal(value.detach().resolve_conj().resolve_neg())


def test_bfloat16_in_numpys_world_arrives_as_float32(pool: Pool) -> None:
    (x, _) = pool.submit("echo", np.ones(3, np.float32), torch.tensor([1.5, -2.0], dtype=torch.bfloat16)).result(60)
    assert isinstance(x, torch.Tensor)  # a tensor among the inputs: tensors come back


def test_objects_that_are_neither_travel_too(pool: Pool) -> None:
    value = {"when": np.datetime64("2026-01-01"), "words": np.array(["a", "bc"]), "set": {1, 2}, "sparse": torch.eye(3).to_sparse()}
    back = pool.submit("echo", value).result(60)

    assert back["set"] == {1, 2} and back["words"].tolist() == ["a", "bc"] and back["when"] == value["when"]
    assert back["sparse"].to_dense().equal(torch.eye(3))


def test_a_part_of_a_tensor_in_an_object_travels_without_the_rest() -> None:
    whole = torch.arange(300_000.0).view(3, 100_000)
    node = pack(SimpleNamespace(part=whole[1, ::2], whole=whole[:, :10]), lambda array, owner: array.tobytes())
    back = unpack(node, lambda place, *_: place)

    assert node[1] < 210_000
    assert back.part.equal(whole[1, ::2]) and back.whole.equal(whole[:, :10])


def test_a_tensor_made_of_others_is_refused_as_an_input_that_cannot_be_sent(pool: Pool) -> None:
    masked = torch.masked.masked_tensor(torch.arange(3.0), torch.tensor([True, False, True]))

    with pytest.raises(UsageError, match="input of model 'echo' cannot be sent to a worker: MaskedTensor"):
        pool.submit("echo", masked)


def test_nested_tensors_arrive(pool: Pool) -> None:
    rows = [torch.ones(2), torch.arange(3.0)]
    back = pool.submit("echo", torch.nested.nested_tensor(rows)).result(60)

    assert all(a.equal(b) for a, b in zip(back.unbind(), rows, strict=True))


def test_a_tensor_without_numbers_is_told(pool: Pool) -> None:
    with pytest.raises(UsageError, match=r"an input of model 'echo' cannot be sent to a worker: Tensor: .*meta"):
        pool.submit("echo", torch.empty(3, device="meta"))


def test_long_plain_values_travel_on_the_lane(pool: Pool) -> None:
    value = [list(range(50_000)), "x" * 500_000]
    assert pool.submit("echo", value).result(60) == value


def test_a_model_that_writes_to_its_input_changes_only_its_own_copy(pool: Pool) -> None:
    for size in (10, 100_000, 1_000_000):
        value = torch.zeros(size)
        results = [pool.submit("in_place", value) for _ in range(3)]
        assert all(future.result(60).eq(1).all() for future in results)
        assert value.eq(0).all()
        assert pool.submit("echo", value).result(60).equal(value)


def test_a_model_that_keeps_its_input_keeps_it_unchanged(pool: Pool) -> None:
    for i in range(8):
        assert pool.submit("keeper", torch.full((50_000,), 7.0 + i)).result(60).item() == 7.0


def test_a_model_that_changes_its_input_and_keeps_it_keeps_what_it_made_of_it(pool: Pool) -> None:
    for i in range(3):
        assert pool.submit("changing_keeper", torch.full((50_000,), 7.0 + i)).result(60).tolist() == [8.0, 8.0 + i]


def test_memory_from_the_pool_is_read_anew_though_the_model_changed_and_kept_it(pool: Pool) -> None:
    x = pool.empty(50_000)
    for i in range(3):
        x[:] = i
        assert pool.submit("changing_keeper", x).result(60)[1] == i + 1


def test_results_stay_as_they_are_while_others_come(pool: Pool) -> None:
    kept = [(i, pool.submit("echo", torch.full((100_000,), float(i))).result(60)) for i in range(40)]
    assert all(value.eq(i).all() for i, value in kept)


def test_results_outlive_the_pool_and_may_be_written_to() -> None:
    with Pool({"echo": Model(f"{HERE}:echo"), "rows": Model(f"{HERE}:moody")}, workers=1) as pool:
        big = pool.submit("echo", np.full(300_000, 3.0)).result(60)
        other = pool.submit("rows", torch.full((300_000,), 3.0)).result(60)
    big += 1
    other += 1
    assert (big == 4).all() and other.eq(7).all()


def test_memory_from_the_pool_is_not_copied_and_used_again(pool: Pool) -> None:
    x = pool.empty((1000, 500), torch.float32)
    x.fill_(2.0)
    y = pool.submit("echo", x).result(60)
    assert y.data_ptr() == x.data_ptr() and y.eq(2).all()

    address = x.data_ptr()
    del x, y
    again = pool.empty((1000, 500), "float32")
    assert isinstance(again, np.ndarray) and again.ctypes.data == address


@pytest.mark.parametrize("shape", [0, (0, 5), (), (3, 0, 2)])
def test_memory_from_the_pool_may_hold_nothing(pool: Pool, shape: Any) -> None:
    for dtype in (torch.float32, None, "int8"):
        x = pool.empty(shape, dtype)
        x[...] = 1
        assert np.array_equal(pool.submit("echo", x).result(60), x)


def test_memory_from_the_pool_has_a_shape(pool: Pool) -> None:
    used = pool.stats()["lanes"]["inputs_used_bytes"]
    for shape in (-1, (2, -3), 2.5):
        with pytest.raises(UsageError, match="shape"):
            pool.empty(shape)
    for shape in ((1 << 62, 1 << 62), 1 << 50):
        with pytest.raises(UsageError, match="more than ever fits the lane"):
            pool.empty(shape)
    assert pool.stats()["lanes"]["inputs_used_bytes"] == used


def test_a_forked_child_touches_nothing_of_the_parents(pool: Pool) -> None:
    """Neither what it lets go of nor what it asks for."""
    result = pool.submit("echo", torch.full((100_000,), 7.0)).result(60)
    lent, zeros = pool.empty(100_000), np.zeros(100_000)  # in the child torch would hang
    lent[:] = 5
    made = pool.submit("in_place", torch.full((100_000,), 6.0)).result(60)
    child = os.fork()
    if child == 0:
        del result, lent, made
        refused = 0
        for act in (lambda: pool.empty(10), lambda: pool.submit("echo", zeros)):
            try:
                act()
            except PoolClosed:
                refused += 1
        os._exit(refused)
    _, status = os.waitpid(child, 0)
    more = [pool.submit("in_place", torch.zeros(100_000)).result(60) for _ in range(4)]

    assert os.waitstatus_to_exitcode(status) == 2
    assert result.eq(7).all() and (lent == 5).all() and made.eq(7).all() and all(one.eq(1).all() for one in more)


def test_a_pool_that_was_closed_closes_no_files_of_others_in_a_forked_child() -> None:
    """Its own had numbers that others have by now. torch's loaders fork, and so does `subprocess` with a preexec_fn."""
    closed = Pool({"echo": Model("torch.nn:Identity")}, workers=1)
    closed.close()
    files = [fd for _ in range(30) for fd in os.pipe()]
    child = os.fork()
    if child == 0:
        try:
            for fd in files:
                os.fstat(fd)
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    for fd in files:
        os.close(fd)

    assert os.waitstatus_to_exitcode(status) == 0 and closed is not None


def test_the_lane_is_free_again_when_all_results_are_gone(pool: Pool) -> None:
    futures = [pool.submit("echo", torch.zeros(200_000)) for _ in range(10)]
    results = [future.result(60) for future in futures]
    used = pool.stats()["lanes"]["inputs_used_bytes"]
    del futures, results

    assert used >= 10 * 800_000
    assert pool.stats()["lanes"]["inputs_used_bytes"] < used - 9 * 800_000
