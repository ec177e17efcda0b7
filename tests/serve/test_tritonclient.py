"""tritonclient with default settings, in the server's own process: HTTP and gRPC, with and without asyncio."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tritonclient", reason="tritonclient is not installed")

import grpc
import tritonclient.grpc as grpc_client
import tritonclient.grpc.aio as grpc_aio
import tritonclient.grpc.model_config_pb2 as theirs_config
import tritonclient.grpc.service_pb2 as theirs
import tritonclient.http as http_client
import tritonclient.http.aio as http_aio
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from rankwise.protocol import bfloat16
from rankwise.serve.rpc.types import POOL, SERVICES, message, methods
from rankwise.serve.serving import Serving
from tests.serve.http_client import Client

A, B = np.array([[1, 2, 3, 4]], np.float32), np.ones((1, 4), np.float32)


@pytest.fixture(scope="module", params=["http", "grpc"])
def triton(request: pytest.FixtureRequest, serving: Serving, client: Client) -> Iterator[Any]:
    module, address = (http_client, serving.http) if request.param == "http" else (grpc_client, serving.grpc)
    with module.InferenceServerClient(address) as found:
        found.module = module
        yield found


def given(module: Any, name: str, array: Any, datatype: str = "", **how: Any) -> Any:
    tensor = module.InferInput(name, list(array.shape), datatype or np_to_triton_dtype(array.dtype))
    tensor.set_data_from_numpy(array, **how)
    return tensor


def plain(said: Any, client: Any) -> dict[str, Any]:
    return said if isinstance(said, dict) else dict(client.as_dict(said))


def test_infer_gives_what_the_model_gives(triton: Any) -> None:
    result = triton.infer("sums", [given(triton.module, "a", A), given(triton.module, "b", B)], request_id="7")

    assert np.array_equal(result.as_numpy("sum"), A + B) and np.array_equal(result.as_numpy("difference"), A - B)
    assert (result.get_response()["id"] if isinstance(result.get_response(), dict) else result.get_response().id) == "7"
    one = triton.infer(
        "sums", [given(triton.module, "a", A), given(triton.module, "b", B)], outputs=[triton.module.InferRequestedOutput("sum")]
    )
    assert np.array_equal(one.as_numpy("sum"), A + B) and one.as_numpy("difference") is None


def test_every_datatype_comes_back_as_it_went(triton: Any) -> None:
    for dtype in ("bool", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8"):
        x = np.array([[0, 1, 1]], dtype)
        model = f"echo_{np_to_triton_dtype(x.dtype)}"
        assert triton.infer(model, [given(triton.module, "x", x)]).as_numpy("y").tobytes() == x.tobytes(), dtype
    bf16 = np.array([[1.5, -2.0]], bfloat16())
    answer = triton.infer("echo_BF16", [given(triton.module, "x", bf16)], outputs=[triton.module.InferRequestedOutput("y")])
    assert np.array_equal(answer.as_numpy("y"), bf16)
    words = np.array([b"ab", b"", b"\xc3\xbc"], object)
    assert triton.infer("words", [given(triton.module, "w", words)]).as_numpy("W").tolist() == [b"AB", b"", b"\xc3\xbc"]


def test_health_metadata_config_statistics_and_repository(triton: Any) -> None:
    assert triton.is_server_live() and triton.is_server_ready() and triton.is_model_ready("sums") and not triton.is_model_ready("nowhere")
    assert plain(triton.get_server_metadata(), _As)["name"] == "rankwise"
    assert [t["name"] for t in plain(triton.get_model_metadata("sums"), _As)["inputs"]] == ["a", "b"]
    config = plain(triton.get_model_config("sums"), _As)
    assert config.get("config", config)["max_batch_size"] == 8
    stats = plain(triton.get_inference_statistics("sums"), _As)["model_stats"][0]
    assert stats["name"] == "sums"
    triton.unload_model("two")
    with pytest.raises(InferenceServerException, match="unloaded"):
        triton.infer("two", [given(triton.module, "x", A)])
    triton.load_model("two")
    index = plain(triton.get_model_repository_index(), _As)
    assert {"two"} <= {entry["name"] for entry in (index["models"] if isinstance(index, dict) else index)}


class _As:
    """A gRPC message as a dict."""

    @staticmethod
    def as_dict(said: Any) -> dict[str, Any]:
        from google.protobuf.json_format import MessageToDict

        if isinstance(said, list):
            return {"models": said}
        return MessageToDict(said, preserving_proto_field_name=True)


def test_what_goes_wrong_is_told(triton: Any) -> None:
    wrong = [
        ("nowhere", A, "nowhere"),
        ("moody", A.astype(np.float64), "FP32"),
        ("moody", A[:, :2], "shape"),
        ("moody", -A, "this row is bad"),
    ]
    for model, x, told in wrong:
        with pytest.raises(InferenceServerException, match=told):
            triton.infer(model, [given(triton.module, "x", x)])
    with pytest.raises(InferenceServerException, match="RW803"):
        triton.infer("moody", [given(triton.module, "x", np.full((1, 4), 500_000, np.float32))], timeout=50_000)


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_http_compression(algorithm: str, serving: Serving, client: Client) -> None:
    x = np.zeros((200, 4), np.float32)
    with http_client.InferenceServerClient(serving.http) as triton:
        answer = triton.infer(
            "moody", [given(http_client, "x", x)], request_compression_algorithm=algorithm, response_compression_algorithm=algorithm
        )
        assert np.array_equal(answer.as_numpy("y"), x)
        as_json = triton.infer("moody", [given(http_client, "x", A, binary_data=False)])
        assert np.array_equal(as_json.as_numpy("y"), 2 * A)


def test_both_clients_of_asyncio(serving: Serving, client: Client) -> None:
    async def ask(module: Any, address: str) -> None:
        async with module.InferenceServerClient(address) as triton:
            assert await triton.is_server_ready() and await triton.is_model_ready("sums")
            found = await asyncio.gather(*[triton.infer("moody", [given(module, "x", A * i)]) for i in range(10)])
            assert all(np.array_equal(result.as_numpy("y"), 2 * A * i) for i, result in enumerate(found))

    asyncio.run(ask(http_aio, serving.http))
    asyncio.run(ask(grpc_aio, serving.grpc))


def test_streams_of_grpc_answer_in_order_and_tell_errors_in_place(serving: Serving, client: Client) -> None:
    found: list[Any] = []
    with grpc_client.InferenceServerClient(serving.grpc) as triton:
        triton.start_stream(lambda result, error: found.append((result, error)))
        for i in (1, -1, 2):
            triton.async_stream_infer("moody", [given(grpc_client, "x", A * i)])
        end = time.monotonic() + 30
        while len(found) < 3:
            assert time.monotonic() < end
            time.sleep(0.01)
        triton.stop_stream()
    assert [None if error else result.as_numpy("y")[0, 0] for result, error in found] == [2, None, 4]


def call(serving: Serving, service: str, method: str, request: Any, timeout: float | None = None) -> Any:
    found = next(own for own in methods(service) if own.name == method)
    gives = message(found.output_type.full_name)
    with grpc.insecure_channel(serving.grpc) as channel:
        return channel.unary_unary(f"/{service}/{method}", type(request).SerializeToString, gives.FromString)(request, timeout=timeout)


def infer_request(**fields: Any) -> Any:
    return message("inference.ModelInferRequest")(**fields)


TYPED = {"name": "x", "datatype": "FP32", "shape": [1, 4], "contents": {"fp32_contents": [1, 2, 3, 4]}}
RAW = {"name": "x", "datatype": "FP32", "shape": [1, 4]}
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "raw and typed": ({"model_name": "moody", "inputs": [TYPED], "raw_input_contents": [A.tobytes()]}, "INVALID_ARGUMENT"),
    "short": ({"model_name": "moody", "inputs": [RAW], "raw_input_contents": [b"abc"]}, "INVALID_ARGUMENT"),
    "too many raws": ({"model_name": "moody", "inputs": [RAW], "raw_input_contents": [A.tobytes()] * 2}, "INVALID_ARGUMENT"),
    "nothing": ({"model_name": "moody", "inputs": [RAW]}, "INVALID_ARGUMENT"),
    "typed FP16": ({"model_name": "moody", "inputs": [{**TYPED, "datatype": "FP16"}]}, "INVALID_ARGUMENT"),
    "another field": ({"model_name": "moody", "inputs": [{**TYPED, "contents": {"fp64_contents": [1, 2, 3, 4]}}]}, "INVALID_ARGUMENT"),
    "negative shape": ({"model_name": "moody", "inputs": [{**TYPED, "shape": [-1, 4]}]}, "INVALID_ARGUMENT"),
    "unknown model": ({"model_name": "nowhere", "inputs": [TYPED]}, "NOT_FOUND"),
    "unknown version": ({"model_name": "moody", "model_version": "9", "inputs": [TYPED]}, "NOT_FOUND"),
    "cannot be built": ({"model_name": "broken", "inputs": [TYPED]}, "UNAVAILABLE"),
}  # fmt: skip


def test_grpc_typed_contents_and_wrong_requests(serving: Serving, client: Client) -> None:
    answer = call(serving, SERVICES[0], "ModelInfer", infer_request(model_name="moody", id="7", inputs=[TYPED]))
    assert list(answer.outputs[0].contents.fp32_contents) == [2, 4, 6, 8] and not answer.raw_output_contents and answer.id == "7"
    for case, (fields, status) in WRONG.items():
        with pytest.raises(grpc.RpcError) as caught:
            call(serving, SERVICES[0], "ModelInfer", infer_request(**fields))
        assert (case, caught.value.code().name) == (case, status) and caught.value.details()


def test_grpc_deadlines_are_the_tasks_and_large_messages_pass(serving: Serving, client: Client) -> None:
    slow = infer_request(model_name="moody", inputs=[{**TYPED, "contents": {"fp32_contents": [500_000, 0, 0, 0]}}])
    with pytest.raises(grpc.RpcError) as caught:
        call(serving, SERVICES[0], "ModelInfer", slow, timeout=0.2)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    x = np.ones((400_000, 4), np.float32)
    with grpc_client.InferenceServerClient(serving.grpc) as triton:
        assert triton.infer("moody", [given(grpc_client, "x", x)]).as_numpy("y").sum() == 2 * x.size


def test_grpc_health_and_reflection(serving: Serving, client: Client) -> None:
    check = message("grpc.health.v1.HealthCheckRequest")
    assert call(serving, "grpc.health.v1.Health", "Check", check()).status == 1
    with pytest.raises(grpc.RpcError):
        call(serving, "grpc.health.v1.Health", "Check", check(service="nowhere"))
    asks, gives = (message(f"grpc.reflection.v1alpha.ServerReflection{what}") for what in ("Request", "Response"))
    with grpc.insecure_channel(serving.grpc) as channel:
        method = channel.stream_stream(f"/{SERVICES[2]}/ServerReflectionInfo", asks.SerializeToString, gives.FromString)
        listed, file, nothing = method(iter([asks(list_services=""), asks(file_containing_symbol=SERVICES[0]), asks(file_by_filename="x")]))
    assert [service.name for service in listed.list_services_response.service] == SERVICES
    assert file.file_descriptor_response.file_descriptor_proto and nothing.error_response.error_code == 5


def test_our_messages_are_a_part_of_theirs() -> None:
    """Field by field: the same numbers and types, so that each side reads what the other writes."""
    mine = POOL.FindFileByName("inference.proto").message_types_by_name
    known = {**theirs.DESCRIPTOR.message_types_by_name, **theirs_config.DESCRIPTOR.message_types_by_name}

    def shape(field: Any) -> tuple[Any, ...]:
        return field.number, field.type, field.is_repeated, field.message_type.full_name if field.message_type else None

    def compare(own: Any, other: Any) -> None:
        for field in own.fields:
            assert shape(field) == shape(other.fields_by_name[field.name]), field.full_name
        for nested in own.nested_types:
            compare(nested, other.nested_types_by_name[nested.name])

    for name, own in mine.items():
        compare(own, known[name])
    their_methods = theirs.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods_by_name
    for method in methods(SERVICES[0]):
        assert method.input_type.full_name == their_methods[method.name].input_type.full_name
