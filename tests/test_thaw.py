"""Records survive their way through JSON, and what is no record is refused with ValueError and nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwise.evidence.records import Call, Ended, Frame, Helper, HostFacts, Init, JobEvidence, Model, RankEvidence, Sample, Thread
from rankwise.thaw import freeze, thaw
from tests.evidence.strategies import FUZZ, json_values, records

PLAIN = [Frame, Thread, Call, Ended, Init, Model, Sample, Helper, HostFacts]


@pytest.mark.parametrize("cls", PLAIN)
@FUZZ
@given(data=st.data())
def test_any_record_comes_back_equal(cls: type, data: st.DataObject) -> None:
    record = data.draw(records(cls))

    assert thaw(cls, json.loads(json.dumps(freeze(record)))) == record


@pytest.mark.parametrize("cls", [*PLAIN, RankEvidence, JobEvidence])
@FUZZ
@given(data=st.data())
def test_any_json_is_a_record_or_a_value_error(cls: type, data: st.DataObject) -> None:
    names = sorted(field for field in cls.__dataclass_fields__)  # type: ignore[attr-defined]
    wrong: Any = data.draw(json_values | st.dictionaries(st.sampled_from(names), json_values, max_size=len(names)))
    try:
        thawed = thaw(cls, wrong)
    except ValueError:
        return
    assert isinstance(thawed, cls)


def test_defaults_are_left_out_and_unknown_keys_ignored() -> None:
    assert freeze(Call("barrier", 1, 0)) == {"op": "barrier", "started_ns": 1, "ended_ns": 0}
    assert thaw(Call, {"op": "barrier", "started_ns": 1, "ended_ns": 0, "from the future": [1]}) == Call("barrier", 1, 0)


@pytest.mark.parametrize("wrong", [None, [], "x", 3, {}, {"op": 1}, {"op": "x", "started_ns": True, "ended_ns": 0}])
def test_what_does_not_fit_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError):
        thaw(Call, wrong)
