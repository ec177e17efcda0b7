"""Parsed Python and the small questions asked of it."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from rankwise.source import tree as trees
from rankwise.source.tree import (
    arguments_of,
    block_of,
    class_of,
    covers,
    once,
    own_nodes,
    owner_name,
    parse,
    returns_plainly,
    scope_of,
    string_key,
    text_of,
)


def parsed(text: str) -> ast.Module:
    tree = parse(text)
    assert tree is not None
    return tree


def function_of(text: str) -> Any:
    return next(node for node in ast.walk(parsed(text)) if isinstance(node, trees.FUNCTIONS))


def call_of(text: str) -> ast.Call:
    return next(node for node in ast.walk(parsed(text)) if isinstance(node, ast.Call))


@pytest.mark.parametrize("text", ["def f(:", "a\x00b", "(" * 5000], ids=["no Python", "a null byte", "too deep"])
def test_what_is_no_python_has_no_tree(text: str) -> None:
    assert parse(text) is None


def test_a_generated_file_is_not_parsed_and_a_byte_order_mark_is_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse("\ufeffa = 1") is not None
    monkeypatch.setattr(trees, "_LONGEST_FILE", 5)
    assert parse("a = 1") is not None and parse("a = 12") is None


def test_nodes_know_what_they_stand_in() -> None:
    tree = parsed("class C:\n    def f(self):\n        if x:\n            y = 1\n        else:\n            z = 2\n")
    y, z = (next(n for n in ast.walk(tree) if isinstance(n, ast.Assign) and n.targets[0].id == name) for name in "yz")

    assert scope_of(y).name == "f" and class_of(y).name == "C" and trees.tree_of(y) is tree
    assert scope_of(tree.body[0]) is tree and class_of(tree.body[0]) is None
    assert block_of(y) == [y] and block_of(z) == [z] and covers(tree.body[0], 4) and not covers(y, 5)


def test_the_insides_of_functions_and_classes_are_not_a_scopes_own() -> None:
    tree = parsed("a = 1\nif b:\n    c = 2\ndef f():\n    d = 3\nx = lambda: e\n")

    assert {node.id for node in own_nodes(tree) if isinstance(node, ast.Name)} == {"a", "b", "c", "x"}


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("x['k']", "k"),
        ("x.get('k', 0)", "k"),
        ("os.getenv('k')", "k"),
        ("getattr(x, 'k', 0)", "k"),
        ("x.get(k)", ""),
        ("x[0]", ""),
        ("x.pop('k')", ""),
        ("getattr(x)", ""),
        ("x", ""),
    ],
)
def test_the_key_that_is_looked_up(text: str, key: str) -> None:
    assert string_key(ast.parse(text, mode="eval").body) == key


def test_the_owner_is_what_stands_before_the_last_dot() -> None:
    assert [owner_name(ast.parse(text, mode="eval").body) for text in ("a.b.c", "a.b.c()", "a.b", "a", "f().b")] == ["b", "b", "a", "", ""]


@pytest.mark.parametrize(
    ("function", "call", "given"),
    [
        ("def f(a, b=1): pass", "f(2)", {"a": "2", "b": "1"}),
        ("def f(a, b=1): pass", "f(b=2, a=3)", {"a": "3", "b": "2"}),
        ("def f(a, /, b, *, c=4): pass", "f(1, 2)", {"a": "1", "b": "2", "c": "4"}),
        ("def f(self, a): pass", "x.f(1)", {"a": "1"}),
        ("def f(self, a): pass", "f(x, 1)", {"self": "x", "a": "1"}),
        ("def f(a): pass", "x.f(1)", {"a": "1"}),
        ("def f(a): pass", "f(*x)", {}),
        ("def f(a): pass", "f(**x)", {}),
    ],
)
def test_what_a_call_gives_for_each_parameter(function: str, call: str, given: dict[str, str]) -> None:
    assert {name: ast.unparse(value) for name, value in arguments_of(function_of(function), call_of(call)).items()} == given


def test_self_comes_by_itself_where_a_class_is_called() -> None:
    found = arguments_of(function_of("def __init__(self, a): pass"), call_of("C(1)"), is_bound=True)

    assert {name: ast.unparse(value) for name, value in found.items()} == {"a": "1"}


@pytest.mark.parametrize(
    ("text", "is_so"),
    [
        ("def f(): return 1", True),
        ("@property\ndef f(): return 1", True),
        ("@torch.no_grad()\ndef f(): return 1", True),
        ("@retry\ndef f(): return 1", False),
        ("def f(): yield 1", False),
        ("async def f(): return 1", False),
        ("def f():\n    g = lambda: (yield)\n    return g", True),
    ],
)
def test_a_call_gives_what_return_says_unless_something_changes_it(text: str, is_so: bool) -> None:
    assert returns_plainly(function_of(text)) == is_so


def test_code_is_cut_to_what_fits_a_sentence() -> None:
    assert text_of(ast.parse("a  +b", mode="eval").body) == "a + b"
    assert len(text_of(ast.parse("a" * 500, mode="eval").body)) == 120


def test_an_answer_is_worked_out_once_for_each_object_and_question() -> None:
    class Asked:
        def __init__(self) -> None:
            self.asked: list[int] = []

        @once
        def double(self, number: int) -> int:
            self.asked.append(number)
            return 2 * number

    one, other = Asked(), Asked()

    assert [one.double(1), one.double(1), one.double(2), other.double(1)] == [2, 2, 4, 2]
    assert one.asked == [1, 2] and other.asked == [1]
