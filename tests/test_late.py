"""Names of a package that are looked up on first use."""

from __future__ import annotations

import pytest

from rankwise.late import late_names


def test_a_name_is_found_in_its_module_and_an_unknown_one_is_told_with_its_package() -> None:
    look_up, names = late_names("house", {"math": ("pi", "inf"), "no_such_module": ("never",)})

    assert look_up("pi") == pytest.approx(3.14159, abs=1e-5)
    assert names() == ["inf", "never", "pi"]  # without importing any of them
    with pytest.raises(AttributeError, match="module 'house' has no attribute 'cellar'"):
        look_up("cellar")
