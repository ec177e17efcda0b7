"""The shop window shows exactly what is for sale."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

import pytest

import rankwise

PACKAGES = sorted(
    module.name for module in pkgutil.iter_modules(rankwise.__path__, "rankwise.") if module.ispkg and module.name != "rankwise.probe"
)


def test_everything_in_all_is_importable() -> None:
    assert len(set(rankwise.__all__)) == len(rankwise.__all__)
    for name in rankwise.__all__:
        assert getattr(rankwise, name) is not None


def test_everything_importable_is_in_all() -> None:
    assert set(dir(rankwise)) == set(rankwise.__all__)  # made of what is looked up late


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_thing"):
        rankwise.no_such_thing  # noqa: B018


def test_rooms_keep_their_word() -> None:
    for package in PACKAGES:
        module = importlib.import_module(package)
        assert (module.__doc__ or "").strip(), f"{package} does not say what lives in it"
        for name in getattr(module, "__all__", []):
            assert hasattr(module, name), f"{package}.__all__ names {name}, which is not there"
            # What is looked up late would be hidden by a module of its name, once that is imported.
            assert not inspect.ismodule(getattr(module, name)), f"{package}.{name} is a module"
