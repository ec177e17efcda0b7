"""gRPC: TLS, tokens, and calls that the client gives up."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grpc", reason="rankwise[serve] is not installed")

import grpc

from rankwise.pool import Model, Pool
from rankwise.protocol import TensorSpec
from rankwise.serve.models_file import Entry
from rankwise.serve.rpc.types import SERVICES, message, methods
from rankwise.serve.serving import Serving, serve
from tests.serve.certificates import make_certificate

TOKEN = "not to be guessed"
LONG_S = 180
FIRST = {"name": "x", "datatype": "FP32", "shape": [1, 4]}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def serving(files: dict[str, str]) -> Iterator[Serving]:
    spec = (TensorSpec("x", "FP32", (-1, 4)),)
    entry = Entry("moody", "1", "moody", Model("tests.serve.models:moody"), spec, (TensorSpec("y", "FP32", (-1, 4)),))
    with Pool({"moody": entry.model}, workers=1) as pool:
        pool.load("moody").result(LONG_S)
        running = serve(pool, entries=[entry], http="127.0.0.1:0", grpc="127.0.0.1:0", block=False, token=TOKEN, **files)
        assert running is not None
        with running:
            yield running


@pytest.fixture(scope="module")
def channel(serving: Serving, files: dict[str, str]) -> Iterator[Any]:
    credentials = grpc.ssl_channel_credentials(Path(files["certificate"]).read_bytes())
    with grpc.secure_channel(serving.grpc, credentials) as channel:
        yield channel


def method(channel: Any, name: str) -> Any:
    found = next(own for own in methods(SERVICES[0]) if own.name == name)
    takes, gives = (message(kind.full_name) for kind in (found.input_type, found.output_type))
    return channel.unary_unary(f"/{SERVICES[0]}/{name}", takes.SerializeToString, gives.FromString)


def infer(first: float = 1) -> Any:
    tensor = {**FIRST, "contents": {"fp32_contents": [first, 2, 3, 4]}}
    return message("inference.ModelInferRequest")(model_name="moody", inputs=[tensor])


def bearing(token: str) -> list[tuple[str, str]]:
    return [("authorization", f"Bearer {token}")]


def test_over_tls_with_the_token(channel: Any) -> None:
    answer = method(channel, "ModelInfer")(infer(), metadata=bearing(TOKEN), timeout=LONG_S)

    assert list(answer.outputs[0].contents.fp32_contents) == [2, 4, 6, 8]


@pytest.mark.parametrize("metadata", [None, bearing("wrong"), bearing(""), [("authorization", TOKEN)], bearing(TOKEN + "x")])
def test_without_the_right_token_nothing_is_told_but_health(channel: Any, metadata: Any) -> None:
    for name in ("ModelInfer", "ModelMetadata", "RepositoryIndex", "RepositoryModelUnload", "ModelStatistics", "ServerMetadata"):
        request = infer() if name == "ModelInfer" else message(f"inference.{name}Request")()
        with pytest.raises(grpc.RpcError) as caught:
            method(channel, name)(request, metadata=metadata, timeout=LONG_S)
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED and TOKEN not in caught.value.details()
    assert method(channel, "ServerLive")(message("inference.ServerLiveRequest")(), timeout=LONG_S).live
    stream = channel.stream_stream(f"/{SERVICES[0]}/ModelStreamInfer", lambda said: said.SerializeToString())
    with pytest.raises(grpc.RpcError) as caught:
        list(stream(iter([infer()]), metadata=metadata, timeout=LONG_S))
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_who_speaks_no_tls_is_not_answered(serving: Serving) -> None:
    with grpc.insecure_channel(serving.grpc) as plain, pytest.raises(grpc.RpcError) as caught:
        method(plain, "ModelInfer")(infer(), metadata=bearing(TOKEN), timeout=5)
    assert caught.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


def test_calls_that_are_given_up_leave_the_queue(serving: Serving, channel: Any) -> None:
    """One runs, the others wait; whoever is cancelled before it begins never runs."""
    pool = serving.server.catalogue.pool

    def numbers() -> dict[str, Any]:
        return dict(pool.stats()["models"]["moody"])

    before = numbers()
    calls = []
    end = time.monotonic() + LONG_S
    while numbers()["cancelled"] - before["cancelled"] < 2:  # on a busy machine they may have begun before they are cancelled: once more
        while numbers()["queued"] < 2:  # or one runs before the next is taken, so call until two wait
            assert time.monotonic() < end
            calls.append(method(channel, "ModelInfer").future(infer(400_000), metadata=bearing(TOKEN)))
            time.sleep(0.05)
        for call in calls:
            call.cancel()
        while numbers()["queued"] or numbers()["running"]:
            assert time.monotonic() < end
            time.sleep(0.02)
    assert numbers()["completed"] - before["completed"] <= len(calls) - 2
    answer = method(channel, "ModelInfer")(infer(), metadata=bearing(TOKEN), timeout=LONG_S)
    assert answer.outputs[0].contents.fp32_contents[0] == 2
