"""Where names are looked up: what a variable, an attribute and a call may mean in the user's files."""

from __future__ import annotations

import ast
import textwrap
from typing import Any

import pytest

from rankwise.source.names import Names
from rankwise.source.tree import FUNCTIONS, parse


class Files:
    """The user's files, and the names in them."""

    def __init__(self, *sources: str) -> None:
        self.sources = [textwrap.dedent(source) for source in sources]
        self.trees = [tree for source in self.sources if (tree := parse(source)) is not None]
        self.names = Names(lambda text: [tree for source, tree in zip(self.sources, self.trees) if text in source])

    def last(self, kind: type, text: str) -> Any:
        """The last node of the first file that reads so."""
        return [node for node in ast.walk(self.trees[0]) if isinstance(node, kind) and ast.unparse(node) == text][-1]


def values(bindings: Any) -> list[str] | None:
    return None if bindings is None else [ast.unparse(binding.value) if binding.value else binding.kind for binding in bindings]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x = 1\nx = 2\nuse(x)", ["2"]),
        ("x = 1\nif y:\n    x = 2\nuse(x)", ["1", "2"]),
        ("x = 1\ndef f():\n    use(x)\nx = 2", ["1", "2"]),  # called later, who knows when
        ("x = 1\ndef f(x):\n    use(x)", ["parameter"]),
        ("x = 1\nclass A:\n    x = 2\n    def f(self):\n        use(x)", ["1"]),  # a class is no scope of its methods
        ("x = 1\nuse([x for x in y])", ["loop"]),
        ("x = 1\nf = lambda x: use(x)", ["loop"]),
        ("def f():\n    use(x)", None),
        ("import x\nuse(x)", ["import"]),
    ],
)
def test_a_name_has_the_values_that_may_reach_its_use(source: str, expected: list[str] | None) -> None:
    files = Files(source)
    use = [node for node in ast.walk(files.trees[0]) if isinstance(node, ast.Name) and node.id == "x" and isinstance(node.ctx, ast.Load)][
        -1
    ]

    assert values(files.names.of_name(use)) == expected


TRAINER = """\
class Trainer:
    rank = 0

    def __init__(self):
        self.rank = get_rank()

    def run(self, other):
        use(self.rank)
        use(other.rank)

class Logger:
    def __init__(self):
        self.rank = 7

job.rank = 8
"""


@pytest.mark.parametrize(
    ("use", "anywhere", "expected"),
    [
        ("self.rank", False, ["get_rank()", "0"]),
        ("self.rank", True, ["get_rank()", "0", "8"]),
        ("other.rank", False, []),
        ("other.rank", True, ["get_rank()", "7", "8"]),
    ],
)
def test_an_attribute_is_that_of_its_class_first(use: str, anywhere: bool, expected: list[str]) -> None:
    files = Files(TRAINER)

    assert values(files.names.of_attribute(files.last(ast.Attribute, use), anywhere)) == expected


def test_an_attribute_is_found_in_another_file() -> None:
    files = Files("use(args.rank)\nargs.rank = 1", "class Args:\n    def __init__(self):\n        self.rank = 3", "other.rank = 5")

    assert values(files.names.of_attribute(files.last(ast.Attribute, "args.rank"), True)) == ["3", "1", "5"]
    assert values(files.names.of_attribute(files.last(ast.Attribute, "args.rank"), False)) == ["1"]


@pytest.mark.parametrize(
    ("sources", "call", "lines"),
    [
        (("def f(): pass\nf()",), "f()", [1]),
        (("f = load()\ndef g(): pass\nf()",), "f()", []),  # whatever was loaded
        (("def f(): pass\nif y:\n    f = load()\nf()",), "f()", []),
        (("from helpers import f\nf()", "def f(): pass", "class A:\n    def f(self): pass"), "f()", [1]),
        (("class A:\n    def f(self): pass\n    def g(self):\n        self.f()\nclass B:\n    def f(self): pass",), "self.f()", [2]),
        (("class A:\n    def f(self): pass\nclass B:\n    def f(self): pass\na.f()",), "a.f()", [2, 4]),
        (("print()",), "print()", []),
    ],
)
def test_a_call_means_what_is_bound_what_the_class_has_or_all_of_that_name(sources: tuple[str, ...], call: str, lines: list[int]) -> None:
    files = Files(*sources)

    assert [function.lineno for function in files.names.of_call(files.last(ast.Call, call))] == lines


def function_of(files: Files, name: str) -> Any:
    return next(node for node in ast.walk(files.trees[0]) if isinstance(node, FUNCTIONS) and node.name == name)


def test_what_calls_give_is_followed_as_far_as_they_are_few() -> None:
    files = Files("def f(a, b=2): pass\nf(1)\nf(3, b=4)", "f(a=5)")
    given = files.names.given_to(function_of(files, "f"))
    assert [{name: ast.unparse(value) for name, value in call.items()} for call in given] == [
        {"b": "2", "a": "1"},
        {"b": "4", "a": "3"},
        {"b": "2", "a": "5"},
    ]

    many = Files("def f(a): pass\n" + "f(1)\n" * 9)
    assert many.names.given_to(function_of(many, "f")) == []

    built = Files("class A:\n    def __init__(self, a): pass\nA(7)")
    assert [ast.unparse(call["a"]) for call in built.names.given_to(function_of(built, "__init__"))] == ["7"]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return 1", ["1"]),
        ("if y:\n        return 1", ["1", None]),
        ("if y:\n        return 1\n    else:\n        return 2", ["1", "2"]),
        ("pass", [None]),
        ("def g():\n        return 3\n    return 4", ["4"]),
        ("x = 0\n    " + "x += 1; " * 300, "too long"),
        ("if y: return 1\n    " * 9 + "return 2", "too many"),
    ],
)
def test_a_small_function_returns_what_it_says_and_nothing_at_its_end(body: str, expected: Any) -> None:
    files = Files(f"def f(y):\n    {body}")

    found = files.names.returns_of(function_of(files, "f"))

    if isinstance(expected, str):
        assert found is None
    else:
        assert found is not None and [ast.unparse(one.value) if one.value else None for one in found] == expected


@pytest.mark.parametrize(
    ("source", "is_so"),
    [
        ("ranks.append(3)", True),
        ("job.ranks.append(3)", True),
        ("ranks[0] = 1", True),
        ("del ranks[0]", True),
        ("ranks += [3]", True),
        ("ranks.index(3)", False),
        ("ranks = [3]", False),
        ("ranks[0]", False),
        ("others.append(ranks)", False),
    ],
)
def test_a_list_that_is_changed_in_place_anywhere_is_known(source: str, is_so: bool) -> None:
    assert Files("ranks = [0, 1]", source).names.is_changed("ranks") == is_so
