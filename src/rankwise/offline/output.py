"""Writes outputs and lists of failed rows so that each appears complete, or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from rankwise.offline.format import Parts, format_to_write
from rankwise.offline.parts import Results
from rankwise.offline.text_lines import json_text

_CHECKED_ROWS = 64


def write_output(output: Path, parts: Parts, total: int, before_rename: Callable[[Path], None] = lambda complete: None) -> None:
    """Write beside it, flush to the disk, then rename. A folder in its place is moved aside and then removed: half of it is never there."""
    temporary = output.with_name(f".{output.stem}.unfinished{output.suffix}")
    aside = output.with_name(f".{output.stem}.replaced{output.suffix}")
    with _removed_unless_moved(temporary), _removed_unless_moved(aside):
        format_to_write(output).write(parts, total, temporary)
        if temporary.is_dir():
            os.sync()  # one call for all its files
        else:
            _flush(temporary)
        before_rename(temporary)
        if os.path.lexists(output) and (output.is_dir() or temporary.is_dir()):
            output.replace(aside)
        temporary.replace(output)


def write_errors(
    paths: Sequence[Path], parts: Iterable[Results], is_ours: Callable[[Path, Path], bool] = lambda path, complete: False
) -> Path | None:
    """Write one line per failed row to the first of these paths that has no list but ours, or to the last; no file if no row failed.

    Jobs side by side may end together, so a list is only put where nothing is: it never replaces one that has just appeared.
    """
    temporary = paths[-1].with_name(f".{paths[-1].name}.unfinished")
    with _removed_unless_moved(temporary):
        count = 0
        with temporary.open("w", encoding="utf-8") as file:
            for results in parts:
                for error in results.errors:
                    file.write(json_text(error) + "\n")
                    count += 1
        if not count:
            return None
        _flush(temporary)
        for path in paths[:-1]:
            if _put_where_nothing_is(temporary, path):
                return path
            if is_ours(path, temporary):
                temporary.replace(path)
                return path
        temporary.replace(paths[-1])
    return paths[-1]


def _put_where_nothing_is(temporary: Path, path: Path) -> bool:
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError:  # a file system without links
        if os.path.lexists(path):
            return False
        temporary.replace(path)
    return True


def check_fits(output: Path, *results: Results) -> None:
    """Raise what writing these results would raise, before the others are computed."""
    with TemporaryDirectory(dir=output.parent, prefix=f".{output.name}.") as folder:
        parts = [each.cut(0, _CHECKED_ROWS) for each in results]
        format_to_write(output).write(lambda: parts, results[0].length, Path(folder) / f"first{output.suffix}")


@contextmanager
def _removed_unless_moved(temporary: Path) -> Iterator[None]:
    _remove(temporary)
    try:
        yield
    finally:
        _remove(temporary)


def _flush(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
