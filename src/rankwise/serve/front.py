"""Around each HTTP request: access, counting and logging; every request gets an answer, whatever fails."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from rankwise.serve.access import AccessGuard, log_request, request_id
from rankwise.serve.errors import ModelFailed, RequestError
from rankwise.serve.exchange import HttpRequest, HttpResponse, as_error
from rankwise.serve.numbers import CONTENT_TYPE, Numbers
from rankwise.serve.page.routes import Page
from rankwise.serve.rest import Rest
from rankwise.serve.tracing import Tracing

log = logging.getLogger("rankwise.serve")
Answer = Callable[[], Awaitable[HttpResponse]]


class Front:
    def __init__(self, rest: Rest, guard: AccessGuard, numbers: Numbers, page: Page, tracing: Tracing) -> None:
        self._rest, self._guard, self._numbers, self._tracing = rest, guard, numbers, tracing
        rest.pages.update(dict.fromkeys(page.paths, page.answer))
        rest.pages["/metrics"] = lambda _: HttpResponse(200, [numbers.page()], CONTENT_TYPE)

    async def respond(self, request: HttpRequest, answer: Answer | None = None, started: float | None = None) -> HttpResponse:
        """The response to a request. Raises only where the client has gone.

        `answer` makes the response to a request that a front end checked and read; `started` is when that began.
        """
        answer, started = answer or (lambda: self._checked(request)), started or time.monotonic()
        if not self._tracing.is_on:
            return await self._respond(request, answer, started, {})
        name = "infer" if request.path.endswith("/infer") else request.method
        with self._tracing.span(name, request.headers, request.path) as said:
            return await self._respond(request, answer, started, said)

    async def _checked(self, request: HttpRequest) -> HttpResponse:
        self._guard.check_http(request.path, request.headers)
        return await self._rest.respond(request)

    async def _respond(self, request: HttpRequest, answer: Answer, started: float, said: dict[str, Any]) -> HttpResponse:
        given = request.headers.get("x-request-id", "")
        ident, response, error_text = request_id(given), HttpResponse(499), ""  # stays 499 if the client leaves
        self._numbers.num_open += 1
        try:
            response = await answer()
        except RequestError as error:
            response, error_text = as_error(error), str(error)
        except Exception:  # a fault of ours: the client learns only that it happened, the log has the traceback
            log.exception("request %s failed", ident)
            response = as_error(ModelFailed(f"an error inside the server; its log has it under {ident}"))
        finally:
            self._numbers.num_open -= 1
            said.update(path=request.path[:300], model=response.model, status=response.status, id=ident, error=error_text)
            self._numbers.count("http", response.model, response.status, started)
            log_request("http", ident, f"{request.method} {request.path[:300]}", response.status, started, response.model, error_text)
        if given:
            response.headers.append(("X-Request-Id", ident))
        return response
