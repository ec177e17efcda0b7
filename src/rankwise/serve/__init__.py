"""The Open Inference Protocol over a pool, by HTTP and gRPC: parses, checks, submits, answers.

Begin with `server`, then `rest`. `models_file` reads MODELS.toml; `catalogue` knows the models (`served` is one of the pool, `virtual` one
made of others), `input_checks` compares a request with what its model declares, `infer_request` is a request and its answer, `binary` both
as HTTP bodies. `http` has the parser and the limits, `front` checks and logs each request; `rpc/` is gRPC, `fronts/` processes that read
HTTP, `page/` the page at `/`.
"""

from __future__ import annotations

import sys
import types
from typing import Any


class _Serve(types.ModuleType):
    """A module that can be called, because `rankwise.serve` is the function, and becomes this package as soon as it is imported."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from rankwise.serve.serving import serve

        return serve(*args, **kwargs)


sys.modules[__name__].__class__ = _Serve
