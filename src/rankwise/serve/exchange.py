"""The HTTP request and the answer that routes take and return."""

from __future__ import annotations

from dataclasses import dataclass, field

import orjson

from rankwise.serve.errors import RETRY_AFTER_S, NotAllowed, RequestError

REASONS = {
    200: "OK", 400: "Bad Request", 401: "Unauthorized", 403: "Forbidden", 404: "Not Found", 405: "Method Not Allowed",
    408: "Request Timeout", 413: "Content Too Large", 415: "Unsupported Media Type", 429: "Too Many Requests",
    431: "Request Header Fields Too Large", 500: "Internal Server Error", 503: "Service Unavailable", 504: "Gateway Timeout",
}  # fmt: skip


@dataclass
class HttpRequest:
    method: str
    path: str  # as it was sent, without the query: still percent-encoded
    headers: dict[str, str]
    body: bytes
    keep_alive: bool = True
    query: str = ""


@dataclass
class HttpResponse:
    status: int = 200
    parts: list[bytes | memoryview] = field(default_factory=list)
    content_type: str = "application/json"
    headers: list[tuple[str, str]] = field(default_factory=list)
    model: str = ""  # for the log and the metrics

    def head(self, date: str, keep_alive: bool) -> bytes:
        head = f"HTTP/1.1 {self.status} {REASONS.get(self.status, 'Error')}\r\nDate: {date}\r\nContent-Length: {self.length}\r\n"
        if self.parts:
            head += f"Content-Type: {self.content_type}\r\n"
        for name, value in self.headers:
            head += f"{name}: {value}\r\n"
        return (head + ("\r\n" if keep_alive else "Connection: close\r\n\r\n")).encode("latin-1")

    @property
    def length(self) -> int:
        return sum([len(part) for part in self.parts])


def as_json(value: object, status: int = 200) -> HttpResponse:
    return HttpResponse(status, [orjson.dumps(value)])


def as_error(error: RequestError) -> HttpResponse:
    """Always `{"error": …}`."""
    text = str(error).encode("utf-8", "backslashreplace").decode()
    response = as_json({"error": text}, error.status)
    response.model = error.model
    if error.status in (429, 503):
        response.headers.append(("Retry-After", str(RETRY_AFTER_S)))
    if isinstance(error, NotAllowed):
        response.headers.append(("Allow", error.allowed))
    if error.status == 401:
        response.headers.append(("WWW-Authenticate", "Bearer"))
    return response
