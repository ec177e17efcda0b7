"""Offline inference: rows in, rows out, in order, each exactly once, whatever is killed on the way.

`sources` read rows in batches, `executing` runs batches in this process or in a pool, `parts` and `journal` keep what is done,
`sinks` write the final output from the parts. `running` puts them together. Only `child` and `gathering` import torch.
"""

from __future__ import annotations

import sys
import types
from typing import Any


class _Predict(types.ModuleType):
    """`rankwise.predict` is this room and the function people call; importing anything below makes Python put the room there."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from rankwise.predict.running import predict

        return predict(*args, **kwargs)


sys.modules[__name__].__class__ = _Predict
