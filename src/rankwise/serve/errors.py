"""Errors as clients see them: one sentence, an HTTP status, a gRPC code."""

from __future__ import annotations

from rankwise.errors import RankwiseError, UsageError
from rankwise.pool.errors import DeadlineExceeded, PoolError, PoolFull, Quarantined, TaskHung

RETRY_AFTER_S = 1
_GRPC = {
    401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND", 405: "UNIMPLEMENTED", 413: "RESOURCE_EXHAUSTED",
    429: "RESOURCE_EXHAUSTED", 500: "INTERNAL", 503: "UNAVAILABLE", 504: "DEADLINE_EXCEEDED",
}  # fmt: skip


class RequestError(Exception):
    """A request failed; the error that its client gets."""

    status = 400
    model = ""  # the model of the request, if it named one

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        if status:
            self.status = status

    @property
    def grpc(self) -> str:
        """The name of the gRPC status."""
        return _GRPC.get(self.status, "INVALID_ARGUMENT")


class NotFound(RequestError):
    status = 404


class NotAllowed(RequestError):
    """The path exists, but not for this HTTP method."""

    status = 405

    def __init__(self, method: str, allowed: str) -> None:
        super().__init__(f"{method} is not allowed here, but {allowed} is")
        self.allowed = allowed


class Unavailable(RequestError):
    status = 503


class ModelFailed(RequestError):
    """The model raised, or returned something that cannot be sent."""

    status = 500


_OF_POOL: dict[type[RankwiseError], int] = {
    PoolFull: 429,  # try again later
    DeadlineExceeded: 504,
    TaskHung: 504,
    Quarantined: 400,
    UsageError: 413,  # an input that never fits into shared memory: other wrong inputs were refused before
    PoolError: 503,  # a pool's other errors: it is closed, or the model cannot be built
}


def as_request_error(error: BaseException, model: str) -> RequestError:
    """The error for the client of an exception from the pool: one sentence, never a traceback."""
    if isinstance(error, RequestError):
        return error
    said = _sentence(error)
    for kind, status in _OF_POOL.items():
        if isinstance(error, kind):
            return RequestError(said, status)
    return ModelFailed(said if isinstance(error, RankwiseError) else f"model {model!r} raised {said}")


def _sentence(error: BaseException) -> str:
    if isinstance(error, RankwiseError):
        return f"{error.finding.code} {error.finding.summary}"[:1000]
    try:
        text = str(error).strip()
    except Exception:  # the exception's own __str__ may raise
        text = ""
    first = text.splitlines()[0] if text else ""
    return f"{type(error).__name__}: {first}"[:1000] if first else type(error).__name__
