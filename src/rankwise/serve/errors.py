"""What a client is told when something fails: one sentence, an HTTP status, a gRPC code."""

from __future__ import annotations

from rankwise.errors import RankwiseError, UsageError
from rankwise.pool.errors import DeadlineExceeded, PoolError, PoolFull, Quarantined, TaskHung

RETRY_AFTER_S = 1


class RequestError(Exception):
    """A request that is not answered with a result; `grpc` is the name of the status there."""

    status, grpc = 400, "INVALID_ARGUMENT"
    model = ""  # the model that was asked, if any

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        if status:
            self.status = status


class NotFound(RequestError):
    status, grpc = 404, "NOT_FOUND"


class NotAllowed(RequestError):
    """This path knows other methods only."""

    status, grpc = 405, "UNIMPLEMENTED"

    def __init__(self, method: str, allowed: str) -> None:
        super().__init__(f"{method} is not allowed here, but {allowed} is")
        self.allowed = allowed


class Unauthorized(RequestError):
    status, grpc = 401, "UNAUTHENTICATED"


class Forbidden(RequestError):
    status, grpc = 403, "PERMISSION_DENIED"


class TooLarge(RequestError):
    status, grpc = 413, "RESOURCE_EXHAUSTED"


class TooMany(RequestError):
    """Try again later."""

    status, grpc = 429, "RESOURCE_EXHAUSTED"


class Unavailable(RequestError):
    status, grpc = 503, "UNAVAILABLE"


class TooLate(RequestError):
    status, grpc = 504, "DEADLINE_EXCEEDED"


class ModelFailed(RequestError):
    """The model raised, or gave what cannot be answered with."""

    status, grpc = 500, "INTERNAL"


_OF_POOL: dict[type[RankwiseError], type[RequestError]] = {
    PoolFull: TooMany,
    DeadlineExceeded: TooLate,
    TaskHung: TooLate,
    Quarantined: RequestError,
    UsageError: TooLarge,  # an input that never fits the lane: all others were looked at before
    PoolError: Unavailable,  # the other errors of a pool: it is closed, or the model cannot be built
}


def as_request_error(error: BaseException, model: str) -> RequestError:
    """What came out of the pool, for the client: what happened, never a traceback."""
    if isinstance(error, RequestError):
        return error
    said = _sentence(error)
    for kind, request_error in _OF_POOL.items():
        if isinstance(error, kind):
            return request_error(said)
    return ModelFailed(said if isinstance(error, RankwiseError) else f"model {model!r} raised {said}")


def _sentence(error: BaseException) -> str:
    if isinstance(error, RankwiseError):
        return f"{error.finding.code} {error.finding.summary}"[:1000]
    try:
        text = str(error).strip()
    except Exception:  # whatever its __str__ does
        text = ""
    first = text.splitlines()[0] if text else ""
    return f"{type(error).__name__}: {first}"[:1000] if first else type(error).__name__
