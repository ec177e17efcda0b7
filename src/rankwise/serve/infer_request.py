"""An inference request and its answer, the same for HTTP and gRPC."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rankwise.protocol import Array
from rankwise.serve.errors import RequestError

LEAST_URGENT = 1000
_DEFAULT_PRIORITY = 100  # for requests without a priority, or with 0; 1 is the most urgent
Output = tuple[str, str, Array]  # name, datatype, array
_LONGEST_S = 30 * 24 * 3600.0


@dataclass
class InferRequest:
    """Inputs by name, in the order they were sent."""

    inputs: dict[str, tuple[str, Array]]  # datatype and array
    outputs: list[str] | None = None  # None: all
    id: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    remaining_s: float | None = None  # seconds left of a deadline that the transport has (gRPC)

    def deadline_s(self) -> float | None:
        """`timeout` of the protocol is in microseconds; 0 means no timeout."""
        timeout = self.parameters.get("timeout", 0)
        if isinstance(timeout, str) and timeout.isdecimal() and len(timeout) < 20:
            timeout = int(timeout)
        if type(timeout) is not int or timeout < 0:
            raise RequestError("the parameter timeout has to be a number of microseconds")
        deadlines = [timeout / 1e6] if timeout else []
        if self.remaining_s is not None:
            deadlines.append(self.remaining_s)
        return min([*deadlines, _LONGEST_S]) if deadlines else None

    def priority(self) -> int:
        """The priority as the pool counts it: the highest runs first."""
        priority = self.parameters.get("priority", 0)
        if type(priority) is not int or not 0 <= priority < 1 << 32:
            raise RequestError("the parameter priority has to be a whole number, 1 for the most urgent")
        return _DEFAULT_PRIORITY - priority if priority else 0


@dataclass
class InferResponse:
    model_name: str
    model_version: str
    id: str
    outputs: list[Output]
    parameters: dict[str, Any] = field(default_factory=dict)
