"""All models by name and version: which one a client gets, what it is told of them, and what shadows make of its requests."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rankwise.pool.api.model import Model
from rankwise.protocol import TensorSpec
from rankwise.serve import catalogue as catalogue_module
from rankwise.serve.answering import Answering
from rankwise.serve.catalogue import Catalogue, Shadow, is_same
from rankwise.serve.errors import NotFound, RequestError
from rankwise.serve.infer_request import LEAST_URGENT, InferRequest, Output
from rankwise.serve.models_file import Entry, ModelsFile

ONES: list[Output] = [("y", "FP32", np.ones(2, np.float32))]


class Made(Answering):
    def __init__(self, entry: Entry) -> None:
        super().__init__(entry.name, entry.version, lambda text, name: None)
        self.preload, self.inputs, self.outputs, self.max_batch = entry.preload, entry.inputs, entry.outputs, entry.model.max_batch
        self.loaded = 0

    async def load(self, said: Any = None) -> None:
        self.loaded += 1

    def unload(self) -> None:
        self.state, self.reason = "UNAVAILABLE", "unloaded"

    def batches(self, numbers: Any) -> dict[int, tuple[int, int]]:
        return {1: (2, 30), 4: (3, 50)}


def entry(name: str, version: str = "1", **facts: Any) -> Entry:
    return Entry(name, version, f"{name}:{version}", facts.pop("model", Model("tests.serve.models:echo")), **facts)


def made(*entries: Entry, source: Any = None) -> Any:
    pool: Any = SimpleNamespace(stats=lambda: {"models": {}}, add=lambda key, model: None)
    file = ModelsFile(entries=tuple(entries)) if entries else ModelsFile()
    return Catalogue(file, pool, lambda said, find: Made(said), lambda *what: None, source)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("versions", "newest"), [(["1", "2", "10"], "10"), (["2", "beta"], "2"), (["beta", "alpha"], "alpha"), (["7"], "7")]
)
def test_without_a_version_the_newest_answers(versions: list[str], newest: str) -> None:
    assert made(*[entry("net", version) for version in versions]).find("net").version == newest


def test_a_version_that_does_not_work_is_not_taken_while_another_does() -> None:
    models = made(entry("net", "1"), entry("net", "2"))
    models.find("net", "2").unload()

    assert models.find("net").version == "1"
    assert models.find("net", "2").version == "2"
    models.unload("net")
    assert models.find("net").version == "2"


@pytest.mark.parametrize(("name", "version", "said"), [("net", "3", "no version '3'; it has 1, 2"), ("other", "", "no model 'other'")])
def test_what_is_not_there_is_told(name: str, version: str, said: str) -> None:
    with pytest.raises(NotFound, match=said):
        made(entry("net", "1"), entry("net", "2")).find(name, version)


def test_a_name_may_have_a_colon_of_its_own() -> None:
    models = made(entry("a:b"), entry("net", "1"), entry("net", "2"))

    assert models.find_named("a:b").name == "a:b"
    assert models.find_named("net:1").version == "1"
    assert models.find_named("net").version == "2"


def test_the_index_shows_all_or_only_those_that_are_ready() -> None:
    models = made(entry("one"), entry("two"))
    models.unload("two")

    assert [said["state"] for said in models.index(only_ready=False)] == ["READY", "UNAVAILABLE"]
    assert [said["name"] for said in models.index(only_ready=True)] == ["one"]


def test_the_server_waits_for_models_that_have_to_be_there_and_were_not_unloaded() -> None:
    models = made(entry("one", preload=True), entry("two", preload=True), entry("three", preload=False))
    for name in ("one", "two", "three"):
        models.find(name).state = "LOADING"
    models.unload("two")

    assert [model.name for model in models.waiting] == ["one"]


def test_metadata_lists_versions_newest_last() -> None:
    assert made(entry("net", "10"), entry("net", "2"), entry("net", "beta")).metadata("net")["versions"] == ["beta", "2", "10"]


ROWS, FIXED = (TensorSpec("x", "FP32", (-1, 4)),), (TensorSpec("y", "BYTES", (2,)),)


@pytest.mark.parametrize(
    ("inputs", "outputs", "max_batch", "size", "dims"),
    [(ROWS, ROWS, 8, 8, [4]), (ROWS, ROWS, 1, 0, [-1, 4]), (ROWS, FIXED, 8, 0, [-1, 4])],
)
def test_the_batch_is_left_out_of_the_dimensions_of_batched_models(inputs: Any, outputs: Any, max_batch: int, size: int, dims: Any) -> None:
    model = Model("tests.serve.models:echo", max_batch=max_batch)

    config = made(entry("net", model=model, inputs=inputs, outputs=outputs)).config("net")

    assert (config["max_batch_size"], config["input"][0]["dims"], "dynamic_batching" in config) == (size, dims, size > 0)
    assert config["output"][0]["data_type"] == ("TYPE_STRING" if outputs is FIXED else "TYPE_FP32")


def test_time_that_no_batch_took_was_spent_waiting() -> None:
    models = made(entry("net"))
    models.find("net").tally._counted["success"] = (5, 100)

    (said,) = models.statistics("net")

    assert (said["inference_count"], said["execution_count"]) == (14, 5)
    assert said["inference_stats"]["compute_infer"] == {"count": 5, "ns": 80}
    assert said["inference_stats"]["queue"] == {"count": 5, "ns": 20}
    assert [batch["batch_size"] for batch in said["batch_stats"]] == [1, 4]


def test_a_folder_that_is_read_again_brings_new_versions_and_drops_those_that_are_gone() -> None:
    models = made(entry("net", "1"), entry("net", "2"), source=lambda: ModelsFile(entries=(entry("net", "2"), entry("net", "3"))))

    asyncio.run(models.load("net"))

    assert [(model.version, model.loaded) for model in models.all] == [("2", 1), ("3", 1)]


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (ONES, True),
        ([("z", "FP32", np.ones(2, np.float32))], False),
        ([("y", "FP64", np.ones(2))], False),
        ([("y", "FP32", np.ones((1, 2), np.float32))], False),
        ([("y", "FP32", np.array([1, 1.0000001], np.float32))], False),
        ([*ONES, *ONES], False),
    ],
)
def test_answers_are_the_same_to_the_bit(other: list[Output], same: bool) -> None:
    assert is_same(ONES, other) is same


class Other(Made):
    outputs_now: Any = ONES

    def __init__(self) -> None:
        super().__init__(entry("other"))
        self.seen: list[InferRequest] = []

    async def _answer(self, request: InferRequest) -> Any:
        self.seen.append(request)
        if isinstance(self.outputs_now, Exception):
            raise self.outputs_now
        return self.respond(request, self.outputs_now)


@pytest.mark.parametrize(
    ("answer", "outcome"), [(ONES, "same"), ([*ONES, *ONES], "different"), (RequestError("no"), "failed"), (ValueError("no"), "failed")]
)
def test_what_came_of_a_shadow_is_counted(answer: Any, outcome: str) -> None:
    shadowed, counted = Other(), []
    shadowed.outputs_now = answer

    async def follow() -> None:
        Shadow(lambda: shadowed, counted.append).follow(InferRequest({}, parameters={"timeout": 1}), ONES)
        await asyncio.sleep(0.01)

    asyncio.run(follow())

    assert counted == [outcome]
    assert shadowed.seen[0].parameters == {"priority": LEAST_URGENT} and shadowed.seen[0].deadline_s() == 60


def test_shadows_beyond_so_many_at_once_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue_module, "_MOST_SHADOWS", 2)
    shadowed, counted = Other(), []

    async def follow() -> None:
        shadow = Shadow(lambda: shadowed, counted.append)
        for _ in range(3):
            shadow.follow(InferRequest({}), ONES)
        await asyncio.sleep(0.01)
        shadow.follow(InferRequest({}), ONES)
        await asyncio.sleep(0.01)

    asyncio.run(follow())

    assert counted == ["left out", "same", "same", "same"]
