"""One rule for `serve`, `worker` and `predict`."""

from __future__ import annotations

from rankwise.pool.api.model import named_list, output_names


def test_one_is_output_and_several_are_numbered_unless_declared() -> None:
    assert output_names(None) == ["output"] and output_names(2) == ["output_0", "output_1"] and output_names(1) == ["output_0"]
    assert output_names(None, ["y"]) == ["y"] and output_names(2, ["a", "b"]) == ["a", "b"]
    assert output_names(2, ["a"]) == ["output_0", "output_1"] and output_names(None, ["a", "b"]) == ["output"]
    assert named_list([3, 4]) == {"output_0": 3, "output_1": 4}
