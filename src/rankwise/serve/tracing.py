"""OpenTelemetry spans, if asked for: one per request, in the client's own trace. Bodies and tokens are never in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rankwise.errors import UsageError

_QUIET = ("/v2/health/live", "/v2/health/ready", "/metrics", "/status", "/", "/page.js", "/page.css")


class Tracing:
    """`url` is a collector that takes OTLP over HTTP, as in http://localhost:4318/v1/traces; empty: no spans, and nothing is imported."""

    def __init__(self, url: str = "") -> None:
        self._provider, self._tracer = None, None
        if not url:
            return
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError:
            raise UsageError("traces need OpenTelemetry, which is not installed", next=('pip install "rankwise[traces]"',)) from None
        provider: Any = TracerProvider(resource=Resource.create({"service.name": "rankwise-serve"}))
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(url)))  # sends in its own thread; drops what its queue cannot hold
        self._provider, self._tracer = provider, provider.get_tracer("rankwise.serve")

    @property
    def is_on(self) -> bool:
        return self._tracer is not None

    @contextmanager
    def span(self, name: str, headers: Mapping[str, Any], path: str = "") -> Iterator[dict[str, Any]]:
        """A span, as a dict: what the caller puts into it (`model`, `status`, `id`, `error`) becomes the span's attributes."""
        said: dict[str, Any] = {}
        if self._tracer is None or path in _QUIET:
            yield said
            return
        from opentelemetry.trace import SpanKind, Status, StatusCode
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        parent = TraceContextTextMapPropagator().extract(
            {key: str(headers[key]) for key in ("traceparent", "tracestate") if key in headers}
        )
        with self._tracer.start_as_current_span(name, parent, SpanKind.SERVER) as span:
            try:
                yield said
            finally:
                span.set_attributes({f"rankwise.{key}": value for key, value in said.items() if value})
                if said.get("error"):
                    span.set_status(Status(StatusCode.ERROR, str(said["error"])))

    def close(self) -> None:
        """Send the spans that are left."""
        if self._provider is not None:
            self._provider.shutdown()
