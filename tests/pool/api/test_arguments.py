"""What is wrong before anything runs is said with the argument's name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankwise.errors import UsageError
from rankwise.pool import Model, Pool
from rankwise.pool.api.model import parse_bytes
from rankwise.pool.backend import check_shape, memory_limits

NAN, BUILD = float("nan"), "tests.pool.models:echo"


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"workers": -1}, "workers is -1"),
        ({"workers": 1.5}, "workers is 1.5"),
        ({"workers": True}, "workers is True"),
        ({"workers": "2"}, "workers is '2'"),
        ({"threads": 0}, "threads is 0"),
        ({"threads": -1}, "threads is -1"),
        ({"max_queue": 0}, "max_queue is 0"),
        ({"max_queue": 2.5}, "max_queue is 2.5"),
        ({"idle_s": -1}, "idle_s is -1"),
        ({"idle_s": NAN}, "idle_s is nan"),
        ({"lane_bytes": 0}, "lane_bytes is 0"),
        ({"lane_bytes": "-1"}, "lane_bytes is '-1'"),
        ({"memory": 0}, "memory is 0"),
        ({"memory": "1.2.3GB"}, "memory is '1.2.3GB'"),
        ({"memory": NAN}, "memory is nan"),
        ({"memory": ["1GB"]}, "memory is of type list"),
        ({"memory": {"CPU": "1MB"}}, "'CPU'"),
        ({"memory": {"gpu": "1MB"}}, "'gpu'"),
        ({"memory": {"cpu": "x"}}, "memory of 'cpu' is 'x'"),
    ],
)
def test_what_a_pool_cannot_be_given(options: dict[str, Any], word: str) -> None:
    with pytest.raises(UsageError, match=word):
        Pool({"m": Model(BUILD)}, **{"workers": 0, **options})


@pytest.mark.parametrize(
    ("models", "word"),
    [
        ([Model(BUILD)], "a dict"),
        ({}, "at least one"),
        ({3: Model(BUILD)}, "name of a model is 3"),
        ({"m": Model(BUILD, max_batch="8")}, "max_batch is '8'"),  # type: ignore[arg-type]
        ({"m": Model(BUILD, max_delay_ms=-3)}, "max_delay_ms is -3"),
        ({"m": Model(BUILD, max_delay_ms=NAN)}, "max_delay_ms is nan"),
        ({"m": Model(BUILD, limit_s=0)}, "limit_s is 0"),
        ({"m": Model(BUILD, replicas=1.5)}, "replicas is 1.5"),  # type: ignore[arg-type]
        ({"m": Model(BUILD, memory="1.2.3GB")}, "memory is '1.2.3GB'"),
        ({"m": Model(BUILD, weights={"w": 1})}, "weights is of type dict"),  # type: ignore[arg-type]
        ({"m": Model(BUILD, args=3)}, "args must be a tuple"),  # type: ignore[arg-type]
        ({"m": Model(BUILD, device=None)}, "no device None"),  # type: ignore[arg-type]
    ],
)
def test_what_a_model_cannot_be_given(models: Any, word: str) -> None:
    with pytest.raises(UsageError, match=word):
        Pool(models, workers=0)


@pytest.mark.parametrize("size", [None, True, -5, 0, 1.5, NAN, float("inf"), "", "GB", "1.2.3GB", "1e9", "-1", "5 XB", [1]])
def test_what_is_no_size(size: Any) -> None:
    with pytest.raises(UsageError, match="not a size"):
        parse_bytes(size)


def test_sizes_are_read_as_people_write_them() -> None:
    sizes = [parse_bytes(size) for size in (5, 1.5e9, "200MB", "1.5 GiB", ".5kb", "7")]
    assert sizes == [5, 1_500_000_000, 200_000_000, 1_610_612_736, 500, 7]


def test_each_device_gets_its_budget() -> None:
    assert memory_limits("1KB", ["cuda:0"]) == {"cpu": 1000, "cuda:0": 1000}
    assert memory_limits({"cuda:1": "3KB", "cuda": "2KB", "cpu": 5}, ["cuda:0", "cuda:1"]) == {"cpu": 5, "cuda:0": 2000, "cuda:1": 3000}
    assert memory_limits({"cuda:7": "3KB"}, ["cpu"]) == {}  # said for another machine
    assert memory_limits(None, ["cpu"]) == {}


@pytest.mark.parametrize("shape", [-1, (3, -1), 2.5, (2, 2.0), "3"])
def test_what_is_no_shape(shape: Any) -> None:
    with pytest.raises(UsageError, match="shape"):
        check_shape(shape)


def test_shapes_as_numpy_takes_them() -> None:
    shapes = [check_shape(shape) for shape in (3, (), (2, 0), [1, 2], np.int64(4), (np.int32(2),))]
    assert shapes == [(3,), (), (2, 0), (1, 2), (4,), (2,)]


@pytest.mark.parametrize("request_", ["e", 3, None])
def test_a_request_of_a_stream_is_a_tuple(request_: Any) -> None:
    with Pool({"e": Model(BUILD)}, workers=0) as pool, pytest.raises(UsageError, match="tuple of a model's name"):
        list(pool.stream([request_]))


def test_a_folder_that_was_removed_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    with pytest.raises(UsageError, match="was removed"):
        Pool({"e": Model(BUILD)}, workers=1)
