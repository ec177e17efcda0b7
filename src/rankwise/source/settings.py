"""Finds the lines where a script sets environment variables."""

from __future__ import annotations

import ast
import re

from rankwise.source.tree import called_name, string_key


def find_python_setting(tree: ast.Module, variable: str) -> int | None:
    """The line of a Python file that sets an environment variable."""
    return next((line for node in ast.walk(tree) if (line := _line_setting(node, variable)) is not None), None)


def _line_setting(node: ast.AST, variable: str) -> int | None:
    """The line on which a piece of Python sets an environment variable."""
    match node:
        case ast.keyword(arg=name, value=value) if name == variable:
            return value.lineno
        case ast.Assign(targets=targets) if any(string_key(target) == variable for target in targets):
            return node.lineno
        case ast.Dict(keys=keys):
            return next((key.lineno for key in keys if isinstance(key, ast.Constant) and key.value == variable), None)
        case ast.Call(args=[ast.Constant(value=name), *_]) if name == variable and called_name(node) in ("setdefault", "putenv"):
            return node.lineno
    return None


def find_shell_setting(lines: list[str], variable: str) -> int | None:
    """The line of a shell script that sets a variable."""
    # `$RANK=…` and `RANK==…` compare, `LOCAL_RANK=` and `--RANK=` are something else
    setting = re.compile(rf"(?<![\w${{-]){re.escape(variable)}=(?!=)")
    for number, text in enumerate(lines, 1):
        if not text.lstrip().startswith("#") and setting.search(text.split(" #")[0]):
            return number
    return None
