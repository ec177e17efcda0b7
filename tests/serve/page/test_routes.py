"""The page's files, what it may do, and the numbers behind it."""

from __future__ import annotations

import re

from tests.serve.http_client import Client, tensor


def test_the_page_may_load_and_run_only_its_own_files(client: Client) -> None:
    for path, kind in (("/", "text/html"), ("/page.js", "text/javascript"), ("/page.css", "text/css")):
        answer = client.get(path)
        assert answer.status == 200 and answer.headers["content-type"].startswith(kind)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "*" not in policy and "http" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        text = answer.body.decode()
        assert not re.search(r"https?://|innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|\bon\w+=|style=", text)
    assert client.post("/").status == 405


def test_the_status_tells_models_workers_and_findings(client: Client) -> None:
    client.infer("moody", {"inputs": [tensor("x", [[-1, 0, 0, 0]])]})
    client.infer("sums", {"inputs": [tensor("a", [[1, 2, 3, 4]]), tensor("b", [[1, 2, 3, 4]])]})
    said = client.get("/status").json

    models = {model["name"]: model for model in said["models"]}
    assert models["sums"]["state"] == "READY" and models["sums"]["answered"] >= 1 and models["sums"]["memory_bytes"] is not None
    assert models["moody"]["failed"] >= 1 and models["moody"]["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}]
    assert said["workers"][0]["ready"] and "sums" in said["workers"][0]["holds"] and said["restarts"] == 0
    assert any(finding["model"] == "moody" and "this row is bad" in finding["text"] for finding in said["findings"])
