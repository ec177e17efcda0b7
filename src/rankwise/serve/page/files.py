"""The page's files and the numbers it asks for, as answers to GET."""

from __future__ import annotations

from pathlib import Path

from rankwise.serve.exchange import HttpRequest, HttpResponse, as_json
from rankwise.serve.page.status import Status

_FILES = {"/": ("index.html", "text/html"), "/page.js": ("page.js", "text/javascript"), "/page.css": ("page.css", "text/css")}
STATUS = "/status"
_POLICY = "; ".join(
    [
        *("default-src 'none'", "script-src 'self'", "style-src 'self'", "connect-src 'self'", "img-src data:"),
        *("base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"),
    ]
)
_HEADERS = [
    ("Content-Security-Policy", _POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cache-Control", "no-store"),
]


class Page:
    def __init__(self, status: Status) -> None:
        folder = Path(__file__).parent
        self._status = status
        self._files = {path: (folder.joinpath(name).read_bytes(), kind) for path, (name, kind) in _FILES.items()}

    @property
    def paths(self) -> tuple[str, ...]:
        return (*_FILES, STATUS)

    def answer(self, request: HttpRequest) -> HttpResponse:
        if request.path == STATUS:
            response = as_json(self._status.now())
            response.headers.append(("Cache-Control", "no-store"))
            return response
        content, kind = self._files[request.path]
        return HttpResponse(200, [content], f"{kind}; charset=utf-8", [*_HEADERS])
