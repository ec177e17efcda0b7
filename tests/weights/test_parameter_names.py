"""The names of parameters: what wrappers put in front of them, and the likely name where one is missing."""

from __future__ import annotations

from typing import Any

import pytest

from rankwise.weights.parameter_names import (
    as_old_weight_norm,
    bare,
    common_prefix,
    nearest,
    notes_by_own_names,
    outer_wrappers,
    wrappers_in,
)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("module._orig_mod.0._orig_mod.weight", "0.weight"), ("modules.0.weight", "modules.0.weight"), ("module", ""), ("weight", "weight")],
)
def test_a_bare_name_has_no_part_of_a_wrapper(name: str, wanted: str) -> None:
    assert bare(name) == wanted


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("0.parametrizations.weight.original0", "0.weight_g"),
        ("parametrizations.weight.original1", "weight_v"),
        ("0.parametrizations.weight.original2", "0.parametrizations.weight.original2"),
        ("0.parametrizations.weight.original1.more", "0.parametrizations.weight.original1.more"),
        ("0.weight", "0.weight"),
    ],
)
def test_weight_norm_by_its_old_name(name: str, wanted: str) -> None:
    assert as_old_weight_norm(name) == wanted


def test_wrappers_are_counted_as_they_stand_together() -> None:
    names = ["module._orig_mod.a.weight", "module._orig_mod.b.weight", "module.a._fsdp_wrapped_module.weight", "plain.weight"]

    assert wrappers_in(names) == {"module._orig_mod.": 2, "module.": 1, "_fsdp_wrapped_module.": 1}


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        (["a.b.x", "a.b.y"], "a.b."),
        (["a.b.x", "a.c.y"], "a."),
        (["a.b.x", "a.x"], "a."),
        (["ab.x", "ac.x"], ""),
        (["a.x", "b.x"], ""),
        (["x", "x"], ""),
        (["a.b.x"], "a.b."),
        ([], ""),
    ],
)
def test_the_parts_all_names_begin_with(names: list[str], wanted: str) -> None:
    assert common_prefix(names) == wanted


def test_outer_wrappers_end_at_the_first_part_of_the_models_own() -> None:
    assert outer_wrappers(["module._orig_mod.a.module.x", "module._orig_mod.a.module.y"]) == "module._orig_mod."
    assert outer_wrappers(["module.x", "x"]) == ""


@pytest.mark.parametrize(
    ("named", "there", "here"),
    [
        ({"0.weight": "module.0.weight"}, {"": 1, "module": 2, "module.0": 3}, {"": 2, "0": 3}),
        ({"module.0.weight": "0.weight"}, {"": 1, "0": 2}, {"module.0": 2, "module": 1}),
        ({"0.weight": "generator.net.0.weight"}, {"generator.net": 1, "generator.net.0": 2}, {"": 1, "0": 2}),
        ({"head.weight": "old.weight"}, {"old": 1, "": 2}, {"head": 1, "": 2}),
    ],
)
def test_notes_follow_the_names_of_the_tensors(named: dict[str, str], there: dict[str, int], here: dict[str, int]) -> None:
    def versions(of: dict[str, int]) -> dict[str, dict[str, Any]]:
        return {name: {"version": number} for name, number in of.items()}

    found = notes_by_own_names(named, versions(there))

    assert {name: found[name] for name in here} == versions(here)


def test_notes_do_not_go_to_modules_of_another_name() -> None:
    assert notes_by_own_names({"a.head.weight": "b.old.weight"}, {"b": {"version": 2}}) == {"b": {"version": 2}}


@pytest.mark.parametrize(
    ("name", "candidates", "wanted"),
    [
        ("encoder.0.weight", ["enc.0.weight", "enc.0.bias", "head.weight"], "enc.0.weight"),
        ("head.bias", ["classifier.bias", "head_norm.weight"], "classifier.bias"),
        ("head.bias", ["zz", "qqqq"], None),
    ],
)
def test_the_nearest_name(name: str, candidates: list[str], wanted: str | None) -> None:
    assert nearest(name, candidates) == wanted
