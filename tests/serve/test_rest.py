"""The REST protocol: what is answered, to the byte, and what each mistake of a client is told."""

from __future__ import annotations

import gzip
import json
import struct
import threading
import zlib
from typing import Any

import numpy as np
import pytest

from rankwise.serve.serving import Serving
from tests.serve.http_client import Answer, Client, binary, tensor

A, B = [[1, 2, 3, 4]], [[1, 1, 1, 1]]
ROW = tensor("x", [[1, 2, 3, 4]])
DTYPES = {
    "BOOL": "bool", "UINT8": "<u1", "UINT16": "<u2", "UINT32": "<u4", "UINT64": "<u8", "INT8": "<i1", "INT16": "<i2", "INT32": "<i4",
    "INT64": "<i8", "FP16": "<f2", "FP32": "<f4", "FP64": "<f8",
}  # fmt: skip


def values(datatype: str) -> np.ndarray[Any, Any]:
    """Of each type its least, its largest, and something between."""
    dtype = np.dtype(DTYPES[datatype])
    if dtype.kind == "b":
        return np.array([[True, False, True]])
    if dtype.kind in "iu":
        return np.array([[np.iinfo(dtype).min, np.iinfo(dtype).max, 7]], dtype)
    return np.array([[np.finfo(dtype).min, np.finfo(dtype).max, np.finfo(dtype).smallest_subnormal, 0.1, -0.0]], dtype)


def raw_of(answer: Answer) -> tuple[Any, bytes]:
    length = int(answer.headers["inference-header-content-length"])
    return json.loads(answer.body[:length]), answer.body[length:]


def test_the_server_says_who_it_is_and_how_it_is(client: Client) -> None:
    said = client.get("/v2").json

    assert said["name"] == "rankwise" and "binary_tensor_data" in said["extensions"]
    assert client.get("/v2/").json == said
    assert (client.get("/v2/health/live").json, client.get("/v2/health/ready").json) == ({"live": True}, {"ready": True})
    assert client.get("/v2/models/sums/ready").status == client.get("/v2/models/two/versions/1/ready").status == 200
    assert client.ask("HEAD", "/v2").headers["content-length"] != "0"


def test_metadata_and_config_are_as_declared_or_found(client: Client) -> None:
    sums, derived = client.get("/v2/models/sums").json, client.get("/v2/models/derived").json

    assert sums["inputs"] == [{"name": name, "datatype": "FP32", "shape": [-1, 4]} for name in "ab"]
    assert derived["outputs"] == [{"name": "output", "datatype": "FP32", "shape": [-1, 2]}]
    assert client.get("/v2/models/two").json["versions"] == ["1", "2"]
    config = client.get("/v2/models/sums/config").json
    assert config["max_batch_size"] == 8 and config["input"][0] == {"name": "a", "data_type": "TYPE_FP32", "dims": [4]}
    config = client.get("/v2/models/moody/config").json
    assert config["max_batch_size"] == 0 and config["input"][0]["dims"] == [-1, 4]


def test_the_inputs_go_by_name_and_the_outputs_as_asked(client: Client) -> None:
    inputs = [tensor("b", B), tensor("a", A)]
    whole = client.infer("sums", {"id": "né 7", "inputs": inputs}).json
    one = client.infer("sums", {"inputs": inputs, "outputs": [{"name": "difference"}]}).json

    assert (whole["model_name"], whole["model_version"], whole["id"]) == ("sums", "1", "né 7")
    assert [(out["name"], out["data"]) for out in whole["outputs"]] == [("sum", [2, 3, 4, 5]), ("difference", [0, 1, 2, 3])]
    assert [out["name"] for out in one["outputs"]] == ["difference"] and "id" not in one
    nested = [{**tensor("a", A), "data": A}, {**tensor("b", B), "data": B}]
    assert client.infer("sums", {"inputs": nested}).json["outputs"] == whole["outputs"]


def test_more_rows_than_a_batch_are_one_answer(client: Client) -> None:
    x = np.arange(400.0).reshape(100, 4)

    answer = client.infer("sums", {"inputs": [tensor("a", x), tensor("b", x)]}).json

    assert answer["outputs"][0]["shape"] == [100, 4] and answer["outputs"][0]["data"] == (2 * x).ravel().tolist()


@pytest.mark.parametrize("datatype", DTYPES)
def test_every_datatype_in_json_and_binary_and_both_ways(datatype: str, client: Client) -> None:
    x = values(datatype)
    raw, model = x.tobytes(), f"echo_{datatype}"
    as_json, as_binary = tensor("x", x, datatype), binary("x", list(x.shape), datatype, len(raw))
    wanted = [{"name": "y", "parameters": {"binary_data": True}}]

    answer = client.infer(model, {"inputs": [as_json]}).json["outputs"][0]
    assert np.array(answer["data"], DTYPES[datatype]).tobytes() == raw and answer["datatype"] == datatype
    head, sent = raw_of(client.infer(model, {"inputs": [as_json], "outputs": wanted}))
    assert sent == raw and head["outputs"][0]["parameters"] == {"binary_data_size": len(raw)} and "data" not in head["outputs"][0]
    assert client.infer(model, {"inputs": [as_binary]}, raw=raw).json["outputs"][0]["data"] == answer["data"]
    assert raw_of(client.infer(model, {"inputs": [as_binary], "parameters": {"binary_data_output": True}}, raw=raw))[1] == raw
    empty = client.infer(model, {"inputs": [{"name": "x", "shape": [0, 3], "datatype": datatype, "data": []}]}).json["outputs"][0]
    assert (empty["shape"], empty["data"]) == ([0, 3], [])


def test_bf16_goes_as_binary_only_and_keeps_its_bits(client: Client) -> None:
    bits = np.arange(0, 1 << 16, 17, dtype=np.uint16)
    bits = bits[(bits & 0x7F80) != 0x7F80].reshape(1, -1)  # without NaN and infinity
    head = {"inputs": [binary("x", list(bits.shape), "BF16", bits.nbytes)], "parameters": {"binary_data_output": True}}

    said, raw = raw_of(client.infer("echo_BF16", head, raw=bits.tobytes()))

    assert raw == bits.tobytes() and said["outputs"][0]["datatype"] == "BF16"
    assert "binary" in client.infer("echo_BF16", {"inputs": [tensor("x", [[1.0]], "BF16")]}).error


def test_nan_and_infinities_are_exact_in_binary_and_as_python_writes_them_in_json(client: Client) -> None:
    x = np.array([[np.nan, np.inf, -np.inf, 1.5]], np.float32)
    answer = client.infer("echo_FP32", {"inputs": [tensor("x", x)]})

    assert b"[NaN, Infinity, -Infinity, 1.5]" in answer.body
    assert np.array(answer.json["outputs"][0]["data"], np.float32).tobytes() == x.tobytes()


def test_bytes_are_texts_in_json_and_framed_in_binary(client: Client) -> None:
    words = ["ab", "", "grün"]
    framed = b"".join(struct.pack("<I", len(word.encode())) + word.encode() for word in words)
    upper = b"".join(struct.pack("<I", len(word.encode().upper())) + word.encode().upper() for word in words)

    answer = client.infer("words", {"inputs": [tensor("w", words, "BYTES")]}).json["outputs"][0]
    assert answer["data"] == [word.encode().upper().decode() for word in words] and answer["datatype"] == "BYTES"
    head = {"inputs": [binary("w", [3], "BYTES", len(framed))], "outputs": [{"name": "W", "parameters": {"binary_data": True}}]}
    assert raw_of(client.infer("words", head, raw=framed))[1] == upper


def test_json_and_binary_inputs_and_outputs_may_be_mixed(client: Client) -> None:
    raw = np.array(A, np.float32).tobytes()
    said = {
        "inputs": [binary("a", [1, 4], "FP32", 16), tensor("b", B)],
        "parameters": {"binary_data_output": True},
        "outputs": [{"name": "sum"}, {"name": "difference", "parameters": {"binary_data": False}}],
    }

    head, rest = raw_of(client.infer("sums", said, raw=raw))

    assert np.frombuffer(rest, np.float32).tolist() == [2, 3, 4, 5] and head["outputs"][1]["data"] == [0, 1, 2, 3]


def test_a_body_without_json_is_the_only_input(client: Client) -> None:
    raw = np.array(A, np.float32).tobytes()
    answer = client.ask("POST", "/v2/models/moody/infer", raw, {"Inference-Header-Content-Length": "0"})

    assert np.frombuffer(raw_of(answer)[1], np.float32).tolist() == [2, 4, 6, 8]


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_bodies_may_be_compressed_both_ways(encoding: str, client: Client) -> None:
    x = np.zeros((64, 4), np.float32)
    head = json.dumps({"inputs": [binary("x", [64, 4], "FP32", x.nbytes)], "parameters": {"binary_data_output": True}}).encode()
    pack, unpack = (gzip.compress, gzip.decompress) if encoding == "gzip" else (zlib.compress, zlib.decompress)
    headers = {"Content-Encoding": encoding, "Accept-Encoding": encoding, "Inference-Header-Content-Length": str(len(head))}

    answer = client.ask("POST", "/v2/models/echo_FP32/infer", pack(head + x.tobytes()), headers)

    assert answer.headers["content-encoding"] == encoding and len(answer.body) < x.nbytes
    length = int(answer.headers["inference-header-content-length"])
    assert unpack(answer.body)[length:] == x.tobytes()
    anything = client.infer("moody", {"inputs": [tensor("x", np.zeros((64, 4)))]}, {"Accept-Encoding": "gzip, deflate, br"})
    assert "content-encoding" not in anything.headers


def test_names_are_percent_decoded_and_versions_chosen(client: Client) -> None:
    assert client.infer("a b/c%", {"inputs": [ROW]}).json["outputs"][0]["data"] == [2, 4, 6, 8]
    first = client.post("/v2/models/two/versions/1/infer", {"inputs": [ROW]}).json
    newest = client.infer("two", {"inputs": [ROW]}).json
    assert (first["model_version"], first["outputs"][0]["data"]) == ("1", [1, 2, 3, 4])
    assert (newest["model_version"], newest["outputs"][0]["data"]) == ("2", [2, 4, 6, 8])


def test_a_model_nobody_described_takes_what_it_gets(client: Client) -> None:
    assert client.get("/v2/models/free").json["inputs"] == []
    answer = client.infer("free", {"inputs": [tensor("whatever", [3], "INT64")]}).json
    assert answer["outputs"] == [{"name": "output", "datatype": "INT64", "shape": [1], "data": [6]}]


WRONG: dict[str, tuple[str, Any, str]] = {
    "elements": ("moody", {"inputs": [{**ROW, "data": [1, 2]}]}, "4 elements"),
    "shape": ("moody", {"inputs": [tensor("x", [[1, 2]])]}, "[-1, 4]"),
    "rank": ("moody", {"inputs": [tensor("x", [1, 2, 3, 4])]}, "[-1, 4]"),
    "nested shape": ("moody", {"inputs": [{**ROW, "data": [[1, 2], [3, 4]]}]}, "shape"),
    "ragged": ("moody", {"inputs": [{**ROW, "data": [[1, 2], [3]]}]}, "even list"),
    "datatype": ("moody", {"inputs": [{**ROW, "datatype": "FP64"}]}, "FP32"),
    "no datatype": ("moody", {"inputs": [{"name": "x", "shape": [1, 4], "data": [1, 2, 3, 4]}]}, "datatype"),
    "datatype that is none": ("moody", {"inputs": [{**ROW, "datatype": "float"}]}, "float"),
    "unknown input": ("moody", {"inputs": [ROW, {**ROW, "name": "z"}]}, "'z'"),
    "missing input": ("sums", {"inputs": [tensor("a", A)]}, "'b'"),
    "the same twice": ("moody", {"inputs": [ROW, ROW]}, "twice"),
    "unknown output": ("moody", {"inputs": [ROW], "outputs": [{"name": "z"}]}, "'z'"),
    "output twice": ("moody", {"inputs": [ROW], "outputs": [{"name": "y"}, {"name": "y"}]}, "twice"),
    "output without name": ("moody", {"inputs": [ROW], "outputs": [3]}, "name"),
    "word": ("moody", {"inputs": [{**ROW, "data": [1, 2, 3, "4"]}]}, "FP32"),
    "null": ("moody", {"inputs": [{**ROW, "data": [1, 2, 3, None]}]}, "FP32"),
    "too large": ("moody", {"inputs": [{**ROW, "data": [1, 2, 3, 1e39]}]}, "too large"),
    "out of range": ("echo_INT8", {"inputs": [tensor("x", [[128]], "INT8")]}, "INT8"),
    "negative": ("echo_UINT8", {"inputs": [tensor("x", [[-1]], "UINT8")]}, "UINT8"),
    "fraction": ("echo_INT32", {"inputs": [tensor("x", [[1.5]], "INT32")]}, "INT32"),
    "beyond 64 bits": ("echo_UINT64", {"inputs": [tensor("x", [[0]], "UINT64", data=[1 << 64])]}, "UINT64"),
    "not a BOOL": ("echo_BOOL", {"inputs": [tensor("x", [[2]], "BOOL")]}, "BOOL"),
    "number for BYTES": ("words", {"inputs": [tensor("w", [1], "BYTES")]}, "texts"),
    "half a surrogate pair": ("words", {"inputs": [tensor("w", ["\ud800"], "BYTES")]}, ""),
    "id that is none": ("moody", {"id": "\ud800", "inputs": [ROW]}, ""),
    "id that is a number": ("moody", {"id": 3, "inputs": [ROW]}, "id"),
    "shape that is none": ("moody", {"inputs": [{**ROW, "shape": "1x4"}]}, "shape"),
    "negative shape": ("moody", {"inputs": [{**ROW, "shape": [-1, 4]}]}, "shape"),
    "huge shape": ("free", {"inputs": [{**ROW, "shape": [1 << 62, 1 << 62]}]}, "shape"),
    "huge empty shape": ("free", {"inputs": [{**ROW, "shape": [0, 1 << 60], "data": []}]}, "shape"),
    "many dimensions": ("free", {"inputs": [{**ROW, "shape": [1] * 100, "data": [1]}]}, "shape"),
    "shape of a bool": ("moody", {"inputs": [{**ROW, "shape": [True, 4]}]}, "shape"),
    "no data": ("moody", {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32"}]}, "data"),
    "data that is none": ("moody", {"inputs": [{**ROW, "data": {"a": 1}}]}, "list"),
    "no inputs": ("moody", {"inputs": []}, "inputs"),
    "inputs that are none": ("moody", {"inputs": {"x": 1}}, "inputs"),
    "an input that is none": ("moody", {"inputs": [3]}, "input"),
    "not an object": ("moody", [1], "object"),
    "parameters": ("moody", {"inputs": [ROW], "parameters": 3}, "parameters"),
    "timeout": ("moody", {"inputs": [ROW], "parameters": {"timeout": "soon"}}, "timeout"),
    "priority": ("moody", {"inputs": [ROW], "parameters": {"priority": -1}}, "priority"),
    "binary_data": ("moody", {"inputs": [ROW], "outputs": [{"name": "y", "parameters": {"binary_data": 1}}]}, "binary_data"),
    "shared memory": ("moody", {"inputs": [{**ROW, "parameters": {"shared_memory_region": "a"}}]}, "shared memory"),
    "classification": ("moody", {"inputs": [ROW], "outputs": [{"name": "y", "parameters": {"classification": 3}}]}, "classification"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_the_client_got_wrong_is_400_and_named(case: str, client: Client) -> None:
    model, said, named = WRONG[case]

    answer = client.infer(model, said)

    assert answer.status == 400 and named in answer.error


HEAD = {"inputs": [binary("x", [1, 4], "FP32", 16)]}
# what is sent behind the JSON, and what Inference-Header-Content-Length says, where it is not the truth
WRONG_BINARY: dict[str, tuple[Any, bytes, str | None]] = {
    "short": (HEAD, b"\0" * 12, None),
    "long": (HEAD, b"\0" * 20, None),
    "size is not the shape's": ({"inputs": [binary("x", [1, 4], "FP32", 12)]}, b"\0" * 12, None),
    "negative size": ({"inputs": [binary("x", [1, 4], "FP32", -16)]}, b"\0" * 16, None),
    "size is a word": ({"inputs": [{**HEAD["inputs"][0], "parameters": {"binary_data_size": "16"}}]}, b"\0" * 16, None),
    "both": ({"inputs": [{**HEAD["inputs"][0], "data": [1, 2, 3, 4]}]}, b"\0" * 16, None),
    "nobody's": ({"inputs": [ROW]}, b"\0" * 16, None),
    "length beyond the body": (HEAD, b"\0" * 16, "100000"),
    "length is a word": (HEAD, b"\0" * 16, "many"),
    "length is negative": (HEAD, b"\0" * 16, "-1"),
    "length is huge": (HEAD, b"\0" * 16, "9" * 4000),
    "length in other digits": (HEAD, b"\0" * 16, "\u00b2"),
    "length cuts the JSON": (HEAD, b"\0" * 16, "10"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG_BINARY)
def test_binary_data_that_does_not_fit_is_400(case: str, client: Client) -> None:
    said, raw, length = WRONG_BINARY[case]
    text = json.dumps(said).encode()

    answer = client.ask("POST", "/v2/models/moody/infer", text + raw, {"Inference-Header-Content-Length": length or str(len(text))})

    assert answer.status == 400 and answer.error


def test_bytes_that_are_framed_wrong_are_400(client: Client) -> None:
    for raw in (b"\x05\0\0\0ab", b"\x01\0\0", b"\xff\xff\xff\xffab", b"\x01\0\0\0a\x01\0\0\0b", b""):
        head = {"inputs": [binary("w", [1], "BYTES", len(raw))]}
        text = json.dumps(head).encode()
        answer = client.ask("POST", "/v2/models/words/infer", text + raw, {"Inference-Header-Content-Length": str(len(text))})
        assert answer.status == 400 and answer.error


BODIES = [b"", b"{", b"null", b"3", b'"a"', b"\xff\xfe", b'{"inputs":' + b"[" * 100_000, b"[" * 5000 + b"]" * 5000, b"{}" * 2, b"\0" * 100]


@pytest.mark.parametrize("number", range(len(BODIES)))
def test_a_body_that_is_no_request_is_400(number: int, client: Client) -> None:
    answer = client.ask("POST", "/v2/models/moody/infer", BODIES[number])

    assert answer.status == 400 and answer.error


# method, path, status
ELSEWHERE = [
    ("GET", "/v2/models/nowhere", 404), ("GET", "/v2/models/two/versions/3", 404), ("GET", "/v2/models/nowhere/ready", 404),
    ("POST", "/v2/models/nowhere/infer", 404), ("POST", "/v2/models/two/versions/9/infer", 404), ("GET", "/v2/nowhere", 404),
    ("GET", "/v3", 404), ("GET", "/v2/models", 404), ("GET", "/v2/models/%ff%00", 404), ("GET", "/v2/models/sums/stats/x", 404),
    ("GET", "/v2/models/sums/infer", 405), ("DELETE", "/v2", 405), ("POST", "/v2/health/live", 405), ("PUT", "/v2/models/sums", 405),
    ("GET", "/v2/repository/index", 405), ("POST", "/metrics", 405), ("POST", "/v2/repository/models/nowhere/load", 404),
    ("POST", "/v2/systemsharedmemory/status", 404), ("OPTIONS", "/v2/models/sums/infer", 405),
]  # fmt: skip


def test_what_is_not_there_is_404_and_what_is_not_allowed_405(client: Client) -> None:
    for method, path, status in ELSEWHERE:
        answer = client.ask(method, path)
        assert (answer.status, path) == (status, path) and answer.error
        assert (status == 405) == ("allow" in answer.headers)


def test_a_model_that_cannot_be_built_is_503_and_not_ready(client: Client) -> None:
    answer = client.infer("broken", {"inputs": [ROW]})

    assert answer.status == 503 and "RW807" in answer.error and "it cannot be built" in answer.error
    assert answer.headers["retry-after"]
    assert client.post("/v2/repository/models/broken/load").status == 503
    assert client.get("/v2/models/broken/ready").status == 400
    index = {entry["name"]: entry for entry in client.post("/v2/repository/index").json}
    assert index["broken"]["state"] == "UNAVAILABLE" and "RW807" in index["broken"]["reason"]
    assert "broken" not in [entry["name"] for entry in client.post("/v2/repository/index", {"ready": True}).json]


def test_what_the_model_raises_is_500_with_its_words(client: Client) -> None:
    answer = client.infer("moody", {"inputs": [tensor("x", [[-1, 0, 0, 0]])]})

    assert answer.status == 500 and answer.error == "model 'moody' raised ValueError: this row is bad"


def test_a_deadline_that_passes_is_504(client: Client) -> None:
    slow = tensor("x", [[500_000, 0, 0, 0]])

    answer = client.infer("moody", {"inputs": [slow], "parameters": {"timeout": 50_000}})

    assert answer.status == 504 and "RW803" in answer.error


def test_a_full_queue_is_429(client: Client, serving: Serving) -> None:
    slow = tensor("x", [[100_000, 0, 0, 0]])
    found: list[Answer] = []

    def ask() -> None:
        with Client(serving.http) as own:
            found.append(own.infer("moody", {"inputs": [slow]}))

    threads = [threading.Thread(target=ask) for _ in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    refused = [answer for answer in found if answer.status == 429]
    assert refused and all("RW801" in answer.error and answer.headers["retry-after"] for answer in refused)
    assert {answer.status for answer in found} == {200, 429}


def test_models_are_unloaded_and_loaded(client: Client) -> None:
    assert client.post("/v2/repository/models/two/unload").status == 200
    assert client.infer("two", {"inputs": [ROW]}).status == 503
    assert client.get("/v2/models/two/ready").status == 400 and client.get("/v2/health/ready").status == 200
    assert client.post("/v2/repository/models/two/load", {"parameters": {}}).status == 200
    assert client.infer("two", {"inputs": [ROW]}).status == 200


def test_statistics_count_what_was_answered(client: Client) -> None:
    def numbers() -> dict[str, Any]:
        return dict(client.get("/v2/models/sums/stats").json["model_stats"][0])

    before = numbers()
    for _ in range(3):
        client.infer("sums", {"inputs": [tensor("a", A * 2), tensor("b", B * 2)]})
    client.infer("sums", {"inputs": []})
    after = numbers()

    assert after["inference_count"] - before["inference_count"] == 6
    assert after["inference_stats"]["success"]["count"] - before["inference_stats"]["success"]["count"] == 3
    assert after["inference_stats"]["fail"]["count"] - before["inference_stats"]["fail"]["count"] == 1
    assert after["inference_count"] >= after["execution_count"] > 0
    batches = after["batch_stats"]
    assert sum(batch["batch_size"] * batch["compute_infer"]["count"] for batch in batches) == after["inference_count"]
    assert sum(batch["compute_infer"]["count"] for batch in batches) == after["execution_count"]
    assert {batch["batch_size"] for batch in batches} >= {2} and all(batch["compute_infer"]["ns"] > 0 for batch in batches)
    derived = client.get("/v2/models/derived/stats").json["model_stats"][0]
    assert derived["inference_count"] == 0 and derived["batch_stats"] == []  # it was asked, but only by us
    assert len(client.get("/v2/models/stats").json["model_stats"]) > 10


def test_metrics_tell_the_same(client: Client) -> None:
    client.infer("sums", {"inputs": [tensor("a", A), tensor("b", B)]})
    text = client.get("/metrics").body.decode()

    assert 'rankwise_serve_requests_total{model="sums",protocol="http",status="200"}' in text
    assert 'rankwise_pool_completed_total{model="sums",pool="serve"}' in text


def test_a_given_request_id_comes_back(client: Client) -> None:
    assert client.ask("GET", "/v2", None, {"X-Request-Id": "abc-1"}).headers["x-request-id"] == "abc-1"
    assert client.ask("GET", "/v2", None, {"X-Request-Id": "a" * 1000}).headers["x-request-id"] != "a" * 1000


def test_pages_of_other_sites_may_not_ask(client: Client) -> None:
    for origin in ("http://evil.example", "null", "http://[", ""):
        answer = client.ask("POST", "/v2/repository/models/two/unload", b"", {"Origin": origin})
        assert answer.status == 403 and answer.error
    rebound = {"Origin": "http://evil.example", "Host": "evil.example"}
    assert client.ask("GET", "/v2", None, rebound).status == 403
