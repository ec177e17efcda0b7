"""Weights and versions that change while clients ask: no request is dropped, and a bad new one does not replace a good old one."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.serve.command import started
from tests.serve.http_client import Client, tensor

torch = pytest.importorskip("torch")

ROW = tensor("x", [[1, 2, 3, 4]])
TOML = """build = "torch.nn:Linear"
args = [4, 1]
weights = "w.pt"
max_batch = 4
inputs = [{ name = "x", datatype = "FP32", shape = [-1, 4] }]
"""


def save(folder: Path, value: float) -> None:
    """A version of the model that answers this number; there at once or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.save({"weight": torch.zeros(1, 4), "bias": torch.full((1,), value)}, folder / "new.pt")
    (folder / "new.pt").replace(folder / "w.pt")
    (folder / "model.toml").write_text(TOML)


def ask(client: Client, version: str = "") -> tuple[str, float]:
    answer = client.post(f"/v2/models/m{f'/versions/{version}' if version else ''}/infer", {"inputs": [ROW]})
    assert answer.status == 200, answer.body
    return answer.json["model_version"], answer.json["outputs"][0]["data"][0]


class Asking:
    """Threads that ask as fast as they can; whatever is not 200, or older than what was seen before, is wrong."""

    def __init__(self, address: str, num_threads: int) -> None:
        self.answered, self.wrong = 0, list[Any]()
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(address,)) for _ in range(num_threads)]

    def _ask(self, address: str) -> None:
        with Client(address) as client:
            seen: tuple[str, float] = ("", 0.0)
            while not self._stop.is_set():
                try:
                    found = ask(client)
                except BaseException as error:
                    self.wrong.append(error)
                    return
                if found < seen:
                    self.wrong.append((seen, found))
                seen, self.answered = found, self.answered + 1

    def __enter__(self) -> Asking:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


@pytest.mark.live
def test_weights_and_versions_come_and_go_under_load(tmp_path: Path) -> None:
    save(tmp_path / "m" / "1", 1.0)
    with started(tmp_path, "--workers", "2", "--quiet") as (_, address), Client(address) as client:
        client.wait_until_ready()
        with Asking(address, 4) as asking:
            for value in (2.0, 3.0, 4.0):
                save(tmp_path / "m" / "1", value)
                assert client.post("/v2/repository/models/m/load").status == 200
                assert ask(client) == ("1", value)
            save(tmp_path / "m" / "2", 1.0)
            assert client.post("/v2/repository/models/m/load").status == 200
            assert ask(client) == ("2", 1.0) and ask(client, "1") == ("1", 4.0)
            assert client.get("/v2/models/m").json["versions"] == ["1", "2"]
            shutil.rmtree(tmp_path / "m" / "1")
            assert client.post("/v2/repository/models/m/load").status == 200
            assert client.get("/v2/models/m").json["versions"] == ["2"]
            assert client.get("/v2/models/m/versions/1").status == 404
        assert not asking.wrong and asking.answered > 100


def test_a_bad_new_one_is_told_and_the_old_one_goes_on(tmp_path: Path) -> None:
    save(tmp_path / "m" / "1", 1.0)
    with started(tmp_path, "--workers", "1", "--quiet") as (_, address), Client(address) as client:
        client.wait_until_ready()
        (tmp_path / "m" / "1" / "w.pt").write_bytes(b"no weights")
        answer = client.post("/v2/repository/models/m/load")
        assert answer.status == 503 and "RW807" in answer.error and "old one" in answer.error
        assert ask(client) == ("1", 1.0) and client.get("/v2/health/ready").status == 200
        index = client.post("/v2/repository/index").json
        assert index[0]["state"] == "READY" and "RW807" in index[0]["reason"]
        (tmp_path / "m" / "1" / "model.toml").write_text("build =")
        answer = client.post("/v2/repository/models/m/load")
        assert answer.status == 400 and "model.toml" in answer.error and ask(client) == ("1", 1.0)
        save(tmp_path / "m" / "1", 5.0)
        assert client.post("/v2/repository/models/m/load").status == 200 and ask(client) == ("1", 5.0)
        assert client.post("/v2/repository/index").json[0]["reason"] == ""
        save(tmp_path / "later" / "1", 1.0)
        assert client.post("/v2/repository/models/later/load").status == 200 and client.get("/v2/models/later/ready").status == 200
