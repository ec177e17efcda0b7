"""`rankwise serve` as from the shell: it says where it listens, answers, and ends well; what is wrong with its arguments is a finding."""

from __future__ import annotations

import json
import signal
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.serve.certificates import make_certificate
from tests.serve.command import MODELS, started
from tests.serve.http_client import Client, tensor

ROW = tensor("x", [[1, 2, 3, 4]])
SLOW = tensor("x", [[3_000_000, 0, 0, 0]])


def test_it_answers_logs_and_finishes_what_is_under_way(tmp_path: Path) -> None:
    (tmp_path / "MODELS.toml").write_text(MODELS)
    (tmp_path / "token").write_text("not to be logged\n")
    found: list[Any] = []
    headers = {"Authorization": "Bearer not to be logged"}
    with started(tmp_path / "MODELS.toml", "--token-file", tmp_path / "token") as (process, address), Client(address) as client:
        client.wait_until_ready()
        assert client.infer("moody", {"inputs": [ROW]}).status == 401
        assert client.infer("moody", {"inputs": [ROW]}, {"Authorization": "Bearer wrong"}).status == 401
        assert client.infer("moody", {"inputs": [ROW]}, headers).json["outputs"][0]["data"] == [2, 4, 6, 8]

        def ask() -> None:
            with Client(address) as other:
                found.append(other.infer("moody", {"inputs": [SLOW]}, {**headers, "X-Request-Id": "the-slow-one"}).status)

        asking = threading.Thread(target=ask)
        asking.start()
        end = time.monotonic() + 30
        while "rankwise_serve_open_requests 2.0" not in client.ask("GET", "/metrics", None, headers).body.decode():
            assert time.monotonic() < end
        process.send_signal(signal.SIGTERM)
        asking.join()
        assert process.wait(30) == 0 and found == [200]
        assert process.stderr is not None
        log = process.stderr.read()
    lines = [json.loads(line) for line in log.splitlines()]
    assert any(line.get("id") == "the-slow-one" and line["status"] == 200 and line["model"] == "moody" for line in lines)
    assert "not to be logged" not in log and "wrong" not in log


@pytest.mark.live
def test_a_log_that_nobody_reads_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "MODELS.toml").write_text(MODELS)
    with started(tmp_path / "MODELS.toml", is_log_read=False) as (_, address), Client(address) as client:
        client.wait_until_ready()
        for _ in range(1000):
            assert client.get("/v2/health/live").status == 200
        assert client.infer("moody", {"inputs": [ROW]}).status == 200


@pytest.mark.live
def test_one_model_without_a_file_and_over_tls(tmp_path: Path) -> None:
    files = make_certificate(tmp_path)
    model = ["--build", "tests.serve.models:linear", "--name", "linear", "--input", "x:FP32:-1,4", "--workers", "0", "--quiet"]
    with started(*model, "--certificate", files["certificate"], "--private-key", files["private_key"]) as (_, address):
        import http.client

        host, _, port = address.rpartition(":")
        context = ssl.create_default_context(cafile=files["certificate"])
        connection = http.client.HTTPSConnection(host, int(port), timeout=60, context=context)
        connection.request("POST", "/v2/models/linear/infer", json.dumps({"inputs": [ROW]}))
        response = connection.getresponse()
        assert response.status == 200 and len(json.loads(response.read())["outputs"][0]["data"]) == 2
        connection.close()


WRONG: dict[str, tuple[list[str], str]] = {
    "nothing": ([], "MODELS.toml or --build"),
    "both": (["MODELS.toml", "--build", "a:b"], "MODELS.toml or --build"),
    "no file": (["nowhere.toml"], "nowhere.toml"),
    "bad TOML": (["bad.toml"], "line 1"),
    "empty folder": (["."], "holds no models"),
    "no address": (["MODELS.toml", "--http", "8000"], "HOST:PORT"),
    "a URL": (["MODELS.toml", "--http", "http://127.0.0.1:8000"], "HOST:PORT"),
    "no such host": (["MODELS.toml", "--http", "192.0.2.1:80", "--grpc", ""], "an address of this host"),
    "a batch": (["MODELS.toml", "--max-batch", "32"], "--max-batch belongs to --build"),
    "a device": (["MODELS.toml", "--device", "cpu"], "--device belongs to --build"),
    "nowhere": (["MODELS.toml", "--http", "", "--grpc", ""], "nowhere to listen"),
    "no collector": (["MODELS.toml", "--traces", "collector:4318"], "URL of a collector"),
    "no time": (["MODELS.toml", "--drain", "nan"], "--drain"),
    "no input": (["--build", "a:b", "--input", "x:float:3"], "x:FP32:-1,784"),
    "no token": (["MODELS.toml", "--token-file", "nowhere"], "nowhere"),
    "no certificate": (["MODELS.toml", "--certificate", "nowhere"], "nowhere"),
    "no size": (["MODELS.toml", "--max-body", "big"], "big"),
    "address in use": (["MODELS.toml", "--http", "192.0.2.1:80", "--grpc", ""], "192.0.2.1:80"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_wrong_usage_is_a_finding_and_exit_2(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    from rankwise.cli.main import main

    (tmp_path / "MODELS.toml").write_text(MODELS)
    (tmp_path / "bad.toml").write_text("[models.\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rankwise.cli.serve._log_json", lambda quiet: None)
    argv, named = WRONG[case]

    assert main(["serve", *argv]) == 2
    told = capsys.readouterr().err
    assert named in told and "Traceback" not in told


@pytest.mark.live
def test_a_program_says_itself_what_it_takes(tmp_path: Path) -> None:
    import torch

    class Twice(torch.nn.Module):
        def forward(self, image: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"twice": image * 2}

    rows = {"image": {0: torch.export.Dim("rows")}}
    program = torch.export.export(Twice(), (torch.zeros(2, 4),), dynamic_shapes=rows)
    (tmp_path / "twice" / "3").mkdir(parents=True)
    torch.export.save(program, tmp_path / "twice" / "3" / "model.pt2")
    with started(tmp_path, "--workers", "1") as (_, address), Client(address) as client:
        said = client.get("/v2/models/twice").json
        assert said["platform"] == "pytorch_pt2" and said["versions"] == ["3"]
        assert said["inputs"] == [{"name": "image", "datatype": "FP32", "shape": [-1, 4]}]
        assert said["outputs"] == [{"name": "twice", "datatype": "FP32", "shape": [-1, 4]}]
        client.wait_until_ready()
        answer = client.infer("twice", {"inputs": [{**ROW, "name": "image"}]}).json
        assert answer["outputs"][0] == {"name": "twice", "datatype": "FP32", "shape": [1, 4], "data": [2, 4, 6, 8]}
        assert client.infer("twice", {"inputs": [{**ROW, "name": "image", "datatype": "FP64"}]}).status == 400


def test_a_folder_of_models_is_read(tmp_path: Path, run_rankwise: Callable[..., Any]) -> None:
    for version in ("1", "2"):
        folder = tmp_path / "moody" / version
        folder.mkdir(parents=True)
        (folder / "model.toml").write_text('build = "tests.serve.models:moody"\npreload = false\n')
    with started(tmp_path, "--workers", "1") as (_, address), Client(address) as client:
        assert client.get("/v2/models/moody").json["versions"] == ["1", "2"]
