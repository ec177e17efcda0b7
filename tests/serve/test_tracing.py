"""Spans as a collector gets them: the client's trace goes on in ours, failures are marked, nothing secret is in them."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk", reason="rankwise[traces] is not installed")

from rankwise.pool import Model, Pool
from rankwise.serve.serving import serve
from tests.serve.http_client import Client, tensor

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TOKEN = "not for a trace"


@pytest.fixture
def collector() -> Iterator[tuple[str, list[Any]]]:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    spans: list[Any] = []

    class Collector(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            said = ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["Content-Length"])))
            spans.extend(span for resource in said.resource_spans for scope in resource.scope_spans for span in scope.spans)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    with http.server.HTTPServer(("127.0.0.1", 0), Collector) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1/traces", spans
        server.shutdown()
        thread.join()


def attributes(span: Any) -> dict[str, Any]:
    return {entry.key: entry.value.string_value or entry.value.int_value for entry in span.attributes}


def test_a_collector_gets_a_span_per_request(collector: tuple[str, list[Any]]) -> None:
    import tritonclient.grpc as triton

    url, spans = collector
    with Pool({"moody": Model("tests.serve.models:moody")}, workers=0) as pool:
        running = serve(pool, http="127.0.0.1:0", grpc="127.0.0.1:0", block=False, traces=url, token=TOKEN)
        assert running is not None
        with running, Client(running.http) as client:
            headers = {"Authorization": f"Bearer {TOKEN}", "traceparent": f"00-{TRACE}-{PARENT}-01"}
            assert client.infer("moody", {"inputs": [tensor("x", [3.0])]}, headers).status == 200
            assert client.infer("moody", {"inputs": [tensor("x", [-3.0])]}, headers).status == 500
            assert client.get("/v2/health/live").status == 200
            with triton.InferenceServerClient(running.grpc) as over_grpc:
                said = over_grpc.get_server_metadata(headers={key.lower(): value for key, value in headers.items()})
                assert said.name == "rankwise"

    assert [span.name for span in spans] == ["infer", "infer", "ServerMetadata"]
    assert {span.trace_id.hex() for span in spans} == {TRACE} and {span.parent_span_id.hex() for span in spans} == {PARENT}
    fine, failed, _ = spans
    assert attributes(fine)["rankwise.model"] == "moody" and attributes(fine)["rankwise.status"] == 200
    assert failed.status.code == 2 and "this row is bad" in failed.status.message
    assert TOKEN not in str(spans)


def test_a_collector_that_is_gone_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")  # how long OpenTelemetry tries, in the end as well
    with Pool({"moody": Model("tests.serve.models:moody")}, workers=0) as pool:
        running = serve(pool, http="127.0.0.1:0", grpc="", block=False, traces="http://127.0.0.1:9/v1/traces")
        assert running is not None
        with running, Client(running.http) as client:
            assert client.infer("moody", {"inputs": [tensor("x", [3.0])]}).status == 200
