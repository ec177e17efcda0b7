"""Which assignment gives a name its value: what binds at all, and what still holds at a line."""

from __future__ import annotations

import ast
import textwrap

import pytest

from rankwise.source.bindings import Binding, attribute_bindings, bindings_in, reaching
from rankwise.source.tree import FUNCTIONS, parse, scope_of


def tree_of(source: str) -> ast.Module:
    tree = parse(textwrap.dedent(source))
    assert tree is not None
    return tree


def told(binding: Binding) -> tuple[str, str, str | None, int | None]:
    return binding.name, binding.kind, None if binding.value is None else ast.unparse(binding.value), binding.index


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a = 1", [("a", "value", "1", None)]),
        ("a: int = 1", [("a", "value", "1", None)]),
        ("a: int", []),
        ("f(a := 1)", [("a", "value", "1", None)]),
        ("a, b = 1, 2", [("a", "value", "1", None), ("b", "value", "2", None)]),
        ("a, b = f()", [("a", "value", "f()", 0), ("b", "value", "f()", 1)]),
        ("a, *b = f()", [("a", "other", None, None), ("b", "other", None, None)]),
        ("(a, b), c = f()", [("a", "other", None, None), ("b", "other", None, None), ("c", "value", "f()", 1)]),
        ("for a in b: pass", [("a", "loop", None, None)]),
        ("a += 1", [("a", "other", None, None)]),
        ("with f() as a: pass", [("a", "other", None, None)]),
        ("import a.b, c as d", [("a", "import", None, None), ("d", "import", None, None)]),
        ("def a(): b = 1", [("a", "other", None, None)]),
        ("x = [a for a in b]", [("x", "value", "[a for a in b]", None)]),
        ("try: pass\nexcept E as a: pass", [("a", "other", None, None)]),
    ],
)
def test_what_binds_a_name_and_with_which_value(source: str, expected: list[tuple[str, str, str | None, int | None]]) -> None:
    assert [told(binding) for binding in bindings_in(tree_of(source))] == expected


def test_parameters_are_bound_in_their_function() -> None:
    function = tree_of("def f(a, *b, c=1, **d): pass").body[0]

    assert [binding.name for binding in bindings_in(function) if binding.kind == "parameter"] == ["a", "b", "c", "d"]


def test_a_function_inside_may_bind_a_name_of_the_scope() -> None:
    tree = tree_of("""\
        a = 1
        def f():
            global a
            a = 2
    """)

    assert [told(binding)[2] for binding in bindings_in(tree) if binding.name == "a"] == ["1", "2"]
    function = next(node for node in tree.body if isinstance(node, FUNCTIONS))
    assert [binding.name for binding in bindings_in(function)] == []


def test_attributes_are_bound_by_assignments_and_properties() -> None:
    tree = tree_of("""\
        self.a = 1
        print(self.b)
        class C:
            @property
            def c(self): return 1
            def d(self): return 1
    """)

    found = [told(binding)[:3] for node in ast.walk(tree) for binding in attribute_bindings(node)]

    assert sorted(found, key=str) == [("a", "value", "1"), ("c", "property", None)]


@pytest.mark.parametrize(
    ("source", "values"),
    [
        ("a = 1\na = 2\nuse(a)", ["2"]),
        ("a = 1\nif x:\n    a = 2\nuse(a)", ["1", "2"]),
        ("a = 1\nif x:\n    a = 2\n    use(a)", ["2"]),
        ("a = 1\nuse(a)\na = 2", ["1"]),
        ("a = 1\nfor i in x:\n    use(a)\n    a = 2", ["1", "2"]),
        ("a = 1\nfor i in x:\n    a = 3\n    use(a)\n    a = 2", ["3"]),
        ("a = 1\ntry:\n    a = 2\nexcept E:\n    pass\nuse(a)", ["1", "2"]),
        ("a = 1\nfor i in x:\n    a = 2\nuse(a)", ["1", "2"]),
        ("a = 1\na = use(a)", ["1"]),
        ("a = 1\nwith x:\n    a = 2\nuse(a)", ["1", "2"]),
    ],
    ids=[
        "the last",
        "maybe",
        "within the branch",
        "not later ones",
        "a loop comes around",
        "but binds anew",
        "try",
        "a loop",
        "its own",
        "with",
    ],
)
def test_which_values_can_hold_where_a_name_is_used(source: str, values: list[str]) -> None:
    tree = tree_of(source)
    call = next(node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "use")
    use = call.args[0]
    assert isinstance(use, ast.Name)
    found = reaching([binding for binding in bindings_in(scope_of(use)) if binding.name == "a"], use)

    assert [told(binding)[2] for binding in found if told(binding)[2] != "use(a)"] == values
