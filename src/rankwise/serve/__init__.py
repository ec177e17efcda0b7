"""The Open Inference Protocol over a pool, by HTTP and gRPC: parses, checks, submits, answers. Begin with `server`, then `rest`."""

from __future__ import annotations

import sys
import types
from typing import Any


class _Serve(types.ModuleType):
    """`rankwise.serve` is this room and the function people call; importing anything below makes Python put the room there."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from rankwise.serve.serving import serve

        return serve(*args, **kwargs)


sys.modules[__name__].__class__ = _Serve
