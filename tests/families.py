"""Families of cases that each start real processes: a few run in `make test`, all of them between that and `make test-live`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest

LONG = pytest.mark.skipif(not os.environ.get("RANKWISE_LONG"), reason="one more of its family; RANKWISE_LONG=1 runs it")
_ParameterSet = type(pytest.param())


def mostly_live(cases: Iterable[Any], quick: int = 1) -> list[Any]:
    """All cases, for `parametrize`; the first and others at equal distances stay in `make test`, so many in all, and the rest is live."""
    known = list(cases)
    stay = {position * len(known) // quick for position in range(quick)}
    return [case if position in stay else _live(case) for position, case in enumerate(known)]


def _live(case: Any) -> Any:
    if isinstance(case, _ParameterSet):
        return pytest.param(*case.values, id=case.id, marks=[*case.marks, pytest.mark.live])
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.live)
