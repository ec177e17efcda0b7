"""Reads what a source file imports, without importing it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src" / "rankwise"


def source_files() -> list[Path]:
    return sorted(SRC.rglob("*.py"))


def room_of(path: Path) -> str:
    """The room a file stands in: `launch`, or `findings` for a file on the floor."""
    return path.relative_to(SRC).parts[0].removesuffix(".py")


@cache
def imported_names(path: Path) -> tuple[str, ...]:
    """Dotted names of everything imported anywhere in the file, also inside functions; relative ones start with a dot."""
    return tuple(_imported_names(path))


def _imported_names(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level:
            yield from ("." * node.level + (f"{node.module}." if node.module else "") + alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def rooms_imported_by(path: Path) -> set[str]:
    """First parts of what is imported from rankwise."""
    names = (name.split(".") for name in imported_names(path))
    return {parts[1] for parts in names if parts[0] == "rankwise" and len(parts) > 1}


def module_of(path: Path) -> str:
    """`rankwise.pool.backend` for its file, `rankwise.pool` for that room's `__init__`."""
    return ".".join(path.relative_to(SRC.parent).with_suffix("").parts).removesuffix(".__init__")


def import_graph() -> dict[str, set[str]]:
    """Which of our modules each of them imports: anywhere in the file, for type checkers only as well."""
    modules = {module_of(path): path for path in source_files()}
    return {
        module: {_module_in(_absolute(name, module, path), modules) for name in imported_names(path)} - {"", module}
        for module, path in modules.items()
    }


def _absolute(name: str, module: str, path: Path) -> str:
    """`rankwise.probe.sites` for what `rankwise.probe.exits` calls `.sites`."""
    level = len(name) - len(name.lstrip("."))
    parts = module.split(".")
    return ".".join([*parts[: len(parts) - level + (path.stem == "__init__")], name.lstrip(".")]) if level else name


def _module_in(name: str, modules: dict[str, Path]) -> str:
    """The module that an imported name is, or lives in; empty for others'."""
    return name if name in modules else name.rpartition(".")[0] if name.rpartition(".")[0] in modules else ""


def packages_imported_by(path: Path) -> set[str]:
    """Top-level packages from outside; rankwise's own and relative imports are left out."""
    return {name.split(".")[0] for name in imported_names(path)} - {"", "rankwise"}
