"""Models made of others: splits by weight, ensembles, shadows; and weights that change while clients ask."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rankwise.errors import UsageError
from rankwise.serve.models_file import read_models
from tests.serve.command import started
from tests.serve.http_client import Client, tensor

REAL = """
[pool]
workers = 1
[models.one]
build = "tests.serve.models:plus"
args = [1.0]
inputs = [{ name = "x", datatype = "FP32", shape = [-1, 4] }]
[models.ten]
build = "tests.serve.models:plus"
args = [10.0]
inputs = [{ name = "x", datatype = "FP32", shape = [-1, 4] }]
[models.moody]
build = "tests.serve.models:moody"
inputs = [{ name = "x", datatype = "FP32", shape = [-1, 4] }]
shadow = "one"
[models.many]
build = "tests.serve.models:plus"
inputs = [{ name = "x", datatype = "FP32", shape = [-1, 4] }]
versions.1.args = [1.0]
versions.2.args = [2.0]
"""
VIRTUAL = """
[models.ab]
split = { one = 0.5, ten = 0.5 }
shadow = "one"
[models.canary]
split = { "many:1" = 1, "many:2" = 0 }
[models.mean]
ensemble = ["one", "ten"]
[models.vote]
ensemble = ["one", "ten", "moody"]
combine = "vote"
[models.fails]
ensemble = ["one", "moody"]
"""
ROW = tensor("x", [[1, 2, 3, 4]])
LONG_S = 60


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("virtual") / "MODELS.toml"
    path.write_text(REAL + VIRTUAL)
    return path


@pytest.fixture(scope="module")
def client(file: Path) -> Iterator[Client]:
    with started(file, "--quiet") as (_, address), Client(address) as client:
        client.wait_until_ready()
        yield client


def answer(client: Client, model: str, said: Any = None, **parameters: Any) -> dict[str, Any]:
    found = client.infer(model, {"inputs": [said or ROW], "parameters": parameters})
    assert found.status == 200, found.body
    return dict(found.json)


def test_a_split_goes_by_weight_and_a_key_stays_where_it_is(client: Client) -> None:
    said = [answer(client, "ab") for _ in range(60)]
    by_target = {one["parameters"]["served_by"]: one["outputs"][0]["data"][0] for one in said}
    assert by_target == {"one:1": 2.0, "ten:1": 11.0} and {one["model_name"] for one in said} == {"ab"}
    for key in ("alice", "bob", 7):
        assert len({answer(client, "ab", key=key)["parameters"]["served_by"] for _ in range(10)}) == 1
    assert len({answer(client, "ab", key=f"user {i}")["parameters"]["served_by"] for i in range(40)}) == 2
    assert client.infer("ab", {"inputs": [ROW], "parameters": {"key": [1]}}).status == 400


def test_an_ensemble_asks_all_and_combines(client: Client) -> None:
    said = answer(client, "mean")
    assert said["outputs"] == [{"name": "output", "datatype": "FP32", "shape": [1, 4], "data": [6.5, 7.5, 8.5, 9.5]}]
    voted = answer(client, "vote", tensor("x", [[1, 5, 3, 4]]))["outputs"][0]
    assert (voted["datatype"], voted["data"]) == ("INT64", [1])
    failed = client.infer("fails", {"inputs": [tensor("x", [[-1, 0, 0, 0]])]})
    assert failed.status == 500 and "this row is bad" in failed.error


def test_they_are_described_checked_and_listed_as_any_model(client: Client) -> None:
    said = client.get("/v2/models/ab").json
    assert said["platform"] == "rankwise_virtual" and said["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}]
    assert client.get("/v2/models/mean/ready").status == 200
    assert client.infer("ab", {"inputs": [tensor("x", [[1, 2]])]}).status == 400
    assert client.infer("mean", {"inputs": [ROW], "outputs": [{"name": "nowhere"}]}).status == 400
    index = {entry["name"]: entry["state"] for entry in client.post("/v2/repository/index").json}
    assert index["ab"] == index["vote"] == "READY"
    before = client.get("/v2/models/ab/stats").json["model_stats"][0]["inference_stats"]["success"]["count"]
    answer(client, "ab")
    assert client.get("/v2/models/ab/stats").json["model_stats"][0]["inference_stats"]["success"]["count"] == before + 1
    assert client.post("/v2/repository/models/mean/unload").status == 200
    assert client.infer("mean", {"inputs": [ROW]}).status == 503 and client.infer("one", {"inputs": [ROW]}).status == 200
    assert client.post("/v2/repository/models/mean/load").status == 200 and answer(client, "mean")
    assert client.get("/status").status == 200


def shadows(client: Client, model: str) -> dict[str, float]:
    text = client.get("/metrics").body.decode()
    return {m[1]: float(m[2]) for m in re.finditer(rf'shadow_requests_total{{model="{model}",outcome="([^"]+)",[^}}]*}} (\S+)', text)}


def test_a_shadow_is_asked_the_same_and_changes_nothing(client: Client) -> None:
    before = shadows(client, "moody")
    assert answer(client, "moody")["outputs"][0]["data"] == [2, 4, 6, 8]  # of moody; one would say 2, 3, 4, 5
    assert answer(client, "moody", tensor("x", [[1, 1, 1, 1]]))["outputs"][0]["data"] == [2, 2, 2, 2]
    end = time.monotonic() + LONG_S
    while sum((after := shadows(client, "moody")).values()) < sum(before.values()) + 2:
        assert time.monotonic() < end
        time.sleep(0.02)
    assert after["same"] - before.get("same", 0) == 1 and after["different"] - before.get("different", 0) == 1


def test_a_canary_gets_more_while_the_server_runs(client: Client, file: Path) -> None:
    assert {answer(client, "canary")["outputs"][0]["data"][0] for _ in range(20)} == {2.0}
    file.write_text((REAL + VIRTUAL).replace('"many:1" = 1, "many:2" = 0', '"many:1" = 0, "many:2" = 1'))
    assert client.post("/v2/repository/models/canary/load").status == 200
    assert {answer(client, "canary")["outputs"][0]["data"][0] for _ in range(20)} == {3.0}


WRONG = {
    "unknown target": ("[models.v]\nsplit = { nowhere = 1 }", "nowhere"),
    "weights are none": ("[models.v]\nsplit = { one = 0 }", "split"),
    "negative": ("[models.v]\nsplit = { one = -1 }", "one"),
    "no table": ("[models.v]\nsplit = 3", "table"),
    "both": ('[models.v]\nsplit = { one = 1 }\nensemble = ["one", "ten"]', "not both"),
    "one is no ensemble": ('[models.v]\nensemble = ["one"]', "two models"),
    "twice the same": ('[models.v]\nensemble = ["one", "one"]', "two models"),
    "unknown combine": ('[models.v]\nensemble = ["one", "ten"]\ncombine = "sum"', "mean"),
    "combine of a split": ('[models.v]\nsplit = { one = 1 }\ncombine = "mean"', "ensemble"),
    "a build as well": ('[models.v]\nsplit = { one = 1 }\nbuild = "a:b"', "build"),
    "of virtual ones": ("[models.v]\nsplit = { w = 1 }\n[models.w]\nsplit = { one = 1 }", "'w'"),
    "unknown shadow": ('[models.v]\nbuild = "a:b"\nshadow = "nowhere"', "nowhere"),
    "its own shadow": ('[models.v]\nbuild = "a:b"\nshadow = "v"', "not another"),
    "a cache of chance": ('[models.v]\nbuild = "a:b"\ncache = "1MB"', "deterministic"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_a_finding_that_names_it(case: str, tmp_path: Path) -> None:
    text, named = WRONG[case]
    (tmp_path / "M.toml").write_text(REAL + text)
    with pytest.raises(UsageError) as caught:
        read_models(tmp_path / "M.toml")
    assert named in str(caught.value)
