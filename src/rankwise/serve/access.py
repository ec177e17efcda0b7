"""The check of the bearer token, and the log line of each request. Bodies, tokens and queries are never logged."""

from __future__ import annotations

import hmac
import itertools
import json
import logging
import os
import time
from collections.abc import Mapping
from urllib.parse import urlsplit

from rankwise.serve.errors import RequestError

log = logging.getLogger("rankwise.serve.access")
_OPEN = ("/v2/health/live", "/v2/health/ready", "/", "/page.js", "/page.css")  # health probes have no token; the page asks for it
LOOPBACK = {"localhost", "127.0.0.1", "::1"}
_numbers = itertools.count(1)
_START = os.urandom(4).hex()


class AccessGuard:
    """`token`: the bearer token that requests must carry; empty for none. `is_loopback`: the server listens on loopback only."""

    def __init__(self, token: str, is_loopback: bool) -> None:
        self._token, self.is_loopback = token.encode(), is_loopback

    @property
    def may_control(self) -> bool:
        return self.is_loopback or bool(self._token)

    def check_token(self, authorization: str) -> None:
        if not self._token:
            return
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(token.strip().encode("utf-8", "surrogateescape"), self._token):
            raise RequestError("a bearer token is needed, and this request has none that is right", 401)

    def check_http(self, path: str, headers: Mapping[str, str]) -> None:
        self._check_origin(headers)
        if path not in _OPEN:
            self.check_token(headers.get("authorization", ""))

    def _check_origin(self, headers: Mapping[str, str]) -> None:
        """Refuse requests from pages of other sites: through a visitor's browser they could reach a server on that visitor's machine."""
        origin = headers.get("origin")
        if origin is None:
            return
        try:
            host, own = urlsplit(origin).netloc, headers.get("host", "")
            name = urlsplit(f"//{own}").hostname
        except ValueError:
            raise RequestError("the Origin of this request is not an origin", 403) from None
        if host != own or (self.is_loopback and name not in LOOPBACK):
            raise RequestError("pages of other sites may not ask this server", 403)


def request_id(given: str) -> str:
    """The client's own id where it is short and printable, else a new one."""
    if given and len(given) <= 128 and given.isascii() and given.isprintable():
        return given
    return f"{_START}-{next(_numbers):x}"


def log_request(protocol: str, ident: str, what: str, status: int | str, started: float, model: str, error: str = "") -> None:
    if log.isEnabledFor(logging.INFO):
        fields = {"protocol": protocol, "id": ident, "request": what, "status": status, "ms": round((time.monotonic() - started) * 1e3, 3)}
        log.info("request", extra={"fields": {**fields, **({"model": model} if model else {}), **({"error": error} if error else {})}})


class JsonLines(logging.Formatter):
    """Each record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=True, default=str)
