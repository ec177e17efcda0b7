"""The packages of the extra `predict`, imported on first use; a missing one is a UsageError."""

from __future__ import annotations

import importlib
from typing import Any

from rankwise.errors import UsageError


class _Module:
    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        try:
            found = getattr(importlib.import_module(self._name), attribute)
        except ImportError as error:
            raise UsageError(
                f"predict needs {self._name.split('.')[0]}", why=str(error), next=('pip install "rankwise[predict]"',)
            ) from None
        setattr(self, attribute, found)  # from the next time on it is a normal attribute
        return found


pa: Any = _Module("pyarrow")
pc: Any = _Module("pyarrow.compute")
pq: Any = _Module("pyarrow.parquet")
pafs: Any = _Module("pyarrow.fs")
ml_dtypes: Any = _Module("ml_dtypes")


def check_arrow() -> None:
    """Raise UsageError before anything starts if pyarrow is not installed."""
    pa.Table  # noqa: B018
