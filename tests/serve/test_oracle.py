"""The same requests to NVIDIA's Triton server and to ours (`make oracle`): answers equal to the byte, refusals alike but where said."""

from __future__ import annotations

import http.client
import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest

if not os.environ.get("RANKWISE_ORACLE"):
    pytest.skip("make oracle runs it: it downloads and starts a Triton server", allow_module_level=True)
pytest.importorskip("hypothesis")

from hypothesis import HealthCheck, given, settings

from benchmarks.environments import Unavailable
from rankwise.serve.rpc.types import SERVICES, message, methods
from rankwise.serve.serving import Serving
from tests.serve import corpus
from tests.serve.corpus import Request
from tests.serve.triton import Triton, triton

SETTINGS = settings(
    max_examples=int(os.environ["RANKWISE_ORACLE"]), deadline=None, database=None, suppress_health_check=list(HealthCheck), print_blob=False
)
# Where our status is of another class than Triton's (its, ours), and why. docs/serve.md says the same.
OUR_WAY = {
    "wrong number of values": (500, 400),
    "negative size": (500, 400),
    "strange shape": (500, 400),
    "no datatype": (500, 400),
    "no such input": (500, 400),
    "no such output": (500, 400),
    "not a request": (500, 400),
    "not numbers": (500, 400),
    "not whole numbers": (500, 400),
    "JSON cut off": (500, 400),
    "strange binary size": (500, 400),
    "strange id": (500, 400),
    "wrong length of the header": (500, 400),
    "out of range": (200, 400),  # Triton takes 300 for the UINT8 44
}
seen: dict[str, Counter[tuple[int, int]]] = defaultdict(Counter)


@pytest.fixture(scope="module")
def them(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Triton]:
    try:
        with triton(tmp_path_factory.mktemp("triton") / "models") as running:
            yield running
    except Unavailable as error:
        pytest.skip(f"no Triton server for this machine: {error}")
    for kind, counts in sorted(seen.items()):
        print(f"{kind}: " + ", ".join(f"{a}/{b} {n} times" for (a, b), n in counts.items()))


class Answer:
    def __init__(self, address: str, request: Request) -> None:
        host, _, port = address.partition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=60)
        try:
            connection.request(request.method, request.path, request.body(), request.all_headers())
            response = connection.getresponse()
            self.status, self.body = response.status, response.read()
            self.header_length = int(response.getheader("Inference-Header-Content-Length") or len(self.body))
        finally:
            connection.close()

    @property
    def said(self) -> Any:
        return json.loads(self.body[: self.header_length])

    def outputs(self) -> dict[str, tuple[str, tuple[int, ...], Any]]:
        """By name: datatype, shape, and the array; of BYTES what was sent."""
        found, raw = {}, self.body[self.header_length :]
        for tensor in self.said["outputs"]:
            size, kind = tensor.get("parameters", {}).get("binary_data_size"), tensor["datatype"]
            if size is not None:
                data, raw = raw[:size], raw[size:]
                value = data if kind == "BYTES" else np.frombuffer(data, corpus.NUMPY[kind])
            else:
                value = tensor["data"] if kind == "BYTES" else np.array(tensor["data"], corpus.NUMPY[kind])
            found[tensor["name"]] = kind, tuple(tensor["shape"]), value
        assert not raw
        return found


def asked(request: Request, them: Triton, serving: Serving) -> tuple[Answer, Answer]:
    theirs, ours = Answer(them.http, request), Answer(serving.http, request)
    seen[request.kind][theirs.status, ours.status] += 1
    return theirs, ours


def is_same(theirs: Any, ours: Any) -> bool:
    """To the bit; Triton's JSON reader may be off by the last digit of a floating-point number, ours is not."""
    if not isinstance(ours, np.ndarray) or ours.dtype.kind != "f":
        return bool(np.array_equal(theirs, ours))
    whole = np.dtype(f"i{ours.dtype.itemsize}")
    a, b = theirs.view(whole), ours.view(whole)
    return bool(((np.abs(a - b) <= 1) | (np.isnan(theirs) & np.isnan(ours))).all())


def test_good_requests_get_the_same_answers(them: Triton, serving: Serving) -> None:
    @SETTINGS
    @given(corpus.good())
    def compare(request: Request) -> None:
        theirs, ours = asked(request, them, serving)
        assert theirs.status == 200
        if ours.status == 400:  # bytes that are no text, wanted as JSON: Triton's answer is not JSON
            assert "ask for it as binary data" in ours.said["error"]
            with pytest.raises(UnicodeDecodeError):
                theirs.body.decode()
            return
        assert ours.status == 200, ours.body
        a, b = theirs.outputs(), ours.outputs()
        assert a.keys() == b.keys()
        for name in a:
            assert a[name][:2] == b[name][:2] and is_same(a[name][2], b[name][2]), (a[name], b[name])
        for key in ("id", "model_name", "model_version"):
            assert theirs.said.get(key) == ours.said.get(key)
        data = request.said["inputs"][0].get("data")
        if "echo_FP64" in request.path and data is not None:
            assert np.array_equal(np.array(data, "f8").ravel(), b["y"][2])

    compare()


def test_bad_requests_get_the_same_refusals_but_where_said(them: Triton, serving: Serving) -> None:
    @SETTINGS
    @given(corpus.bad())
    def compare(request: Request) -> None:
        theirs, ours = asked(request, them, serving)
        assert list(ours.said) == ["error"]
        assert 400 <= ours.status < 500
        is_alike = theirs.status // 100 == ours.status // 100
        assert (
            is_alike
            or (theirs.status, ours.status) == OUR_WAY.get(request.kind)
            or (request.kind == "out of range" and theirs.status == 500)
        ), (request, theirs.body, ours.body)

    compare()
    assert all(seen[kind][pair] for kind, pair in OUR_WAY.items()), f"a difference is none any more: {dict(seen)}"


# ---- gRPC

_FIELDS = {
    "BOOL": "bool_contents",
    "UINT64": "uint64_contents",
    "INT64": "int64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
}


def infer(address: str, said: dict[str, Any], raw: list[bytes]) -> tuple[str, Any]:
    """The code and the answer, if there is one."""
    found = next(own for own in methods(SERVICES[0]) if own.name == "ModelInfer")
    takes, gives = (message(kind.full_name) for kind in (found.input_type, found.output_type))
    with grpc.insecure_channel(address) as channel:
        call = channel.unary_unary(f"/{SERVICES[0]}/ModelInfer", takes.SerializeToString, gives.FromString)
        try:
            return "OK", call(takes(**said, raw_input_contents=raw), timeout=60)
        except grpc.RpcError as error:
            return error.code().name, None


@pytest.mark.parametrize("way", ["raw", "typed"])
def test_tensors_over_grpc_come_back_the_same(them: Triton, serving: Serving, way: str) -> None:
    random = np.random.default_rng(0)
    for kind, code in corpus.NUMPY.items():
        if way == "typed" and kind == "FP16":
            continue
        array = random.integers(0, 2 if kind == "BOOL" else 100, (3, 2)).astype(code)
        tensor: dict[str, Any] = {"name": "x", "datatype": kind, "shape": [3, 2]}
        if way == "typed":
            field = _FIELDS.get(kind, "uint_contents" if kind.startswith("U") else "int_contents")
            tensor["contents"] = {field: array.ravel().tolist()}
        answers = [
            infer(address, {"model_name": f"echo_{kind}", "id": "7", "inputs": [tensor]}, [array.tobytes()] if way == "raw" else [])
            for address in (them.grpc, serving.grpc)
        ]
        assert [code for code, _ in answers] == ["OK", "OK"], kind
        if way == "raw":
            assert {bytes(answer.raw_output_contents[0]) for _, answer in answers} == {array.tobytes()}
        assert (
            len({(answer.id, answer.model_name, answer.outputs[0].datatype, tuple(answer.outputs[0].shape)) for _, answer in answers}) == 1
        )


@pytest.mark.parametrize(
    ("said", "raw"),
    [
        ({"model_name": "nobody"}, [bytes(16)]),
        ({"model_version": "7"}, [bytes(16)]),
        ({"inputs": []}, []),
        ({"inputs": [{"name": "z", "datatype": "FP32", "shape": [2, 2]}]}, [bytes(16)]),
        ({"inputs": [{"name": "x", "datatype": "INT32", "shape": [2, 2]}]}, [bytes(16)]),
        ({"inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 2, 1]}]}, [bytes(16)]),
        ({}, [bytes(15)]),
        ({}, [bytes(17)]),
        ({}, []),
        ({"outputs": [{"name": "nothing"}]}, [bytes(16)]),
        ({"inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 2], "contents": {"fp32_contents": [1] * 4}}]}, [bytes(16)]),
    ],
)
def test_what_is_wrong_over_grpc_is_refused_alike(them: Triton, serving: Serving, said: dict[str, Any], raw: list[bytes]) -> None:
    whole = {"model_name": "echo_FP32", "inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 2]}], **said}

    theirs, ours = (infer(address, whole, raw)[0] for address in (them.grpc, serving.grpc))

    assert theirs == ours != "OK"


def test_raw_tensors_that_belong_to_no_input_are_refused_by_us_only(them: Triton, serving: Serving) -> None:
    said = {"model_name": "echo_FP32", "inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 2]}]}

    assert [infer(address, said, [bytes(16), bytes(16)])[0] for address in (them.grpc, serving.grpc)] == ["OK", "INVALID_ARGUMENT"]
