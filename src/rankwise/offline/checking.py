"""Finds mistakes in a job before anything starts, among them outputs that would replace something they must not."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath, PurePosixPath
from typing import Any

from rankwise.errors import UsageError
from rankwise.files import is_special
from rankwise.offline.addresses import Address, Place, is_address, path_or_address
from rankwise.offline.executing import check_names
from rankwise.offline.format import format_to_write
from rankwise.offline.workspace import names_in, read_marker, writing


@dataclass(frozen=True)
class Options:
    """How a job is run; options that change the results are not among these."""

    workers: int | str = "auto"
    batch: int | str = "auto"
    max_errors: int | None = None
    restart: bool = False
    overwrite: bool = False
    errors: str | os.PathLike[str] | None = None
    engine: str = "processes"
    address: str | None = None  # of the cluster, for an engine that runs on one


def check_options(options: Options, device: str) -> None:
    for name, value, least in (("batch", options.batch, 1), ("workers", options.workers, 0)):
        if value != "auto" and (type(value) is not int or value < least):
            raise UsageError(f'{name} must be "auto" or a number from {least} on, not {value!r}')
    if options.max_errors is not None and (type(options.max_errors) is not int or options.max_errors < 0):
        raise UsageError(f"max_errors must be a number of rows, not {options.max_errors!r}", next=("0 stops at the first row that fails",))
    if options.engine != "processes" and options.workers == 0:
        raise UsageError(
            f"workers=0 runs the model in this process, and engine {options.engine!r} does not", next=("leave out one of them",)
        )
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", device):
        raise UsageError(f"there is no device {device!r}", next=("auto, cpu, cuda or cuda:0",))


def check_is_path(**given: Any) -> None:
    """Raise UsageError for an address, because only the input and the output may be one; and for an empty text, which would stand for no
    weights or for this folder, and is mostly a variable that was never set."""
    for name, value in given.items():
        if value is not None and not isinstance(value, (str, os.PathLike)):
            raise UsageError(f"{name} must be a path, not a {type(value).__name__}", next=("save it to a file, and give the path of that",))
        if value == "":
            raise UsageError(f"{name} is empty, where a path is wanted", next=(f"leave {name} out, or give a path",))
        if is_address(value):
            raise UsageError(f"{name} is an address, where a path of this machine is wanted", next=("copy it here first",))


def check_recipe(build: Any, load: Any) -> None:
    """Refuse what scripts pass by mistake: the model itself, or the function that loads a file."""
    if hasattr(build, "state_dict") and not isinstance(build, type):
        steps = ("give the function, or the class, that makes it: build=lambda: model, with workers=0",)
        raise UsageError(f"build is a model (a {type(build).__name__}), where what makes one is wanted", next=steps)
    if not (isinstance(build, str) or callable(build)):
        raise UsageError(f"build must be a callable or an import path, not {build!r}"[:300], next=("my_models:build",))
    if not isinstance(load, (str, type(None))):
        raise UsageError(f"load must be an import path, not a {type(load).__name__}", next=('load="my_data:load_image"',))


def check_columns(**lists: Sequence[str]) -> None:
    """Refuse a single text, which is a sequence of its letters."""
    for name, given in lists.items():
        if given is None:
            raise UsageError(f"{name} takes a list of names, not None", next=(f"leave {name} out",))
        if isinstance(given, str):
            raise UsageError(f"{name} takes a list of names, not the text {given!r}", next=(f"{name}=[{given!r}]",))


def check_output(target: Place, keep: Sequence[str], options: Options) -> None:
    """Check that there is a place and a writer for the output, and room in its format for kept columns."""
    kind = format_to_write(target)
    if isinstance(target, Address):
        if not target.suffix:
            why = "its files would appear one by one, and nobody could tell when it is complete"
            raise UsageError(f"a folder cannot be written to {target}", why=why, next=("write one file: .parquet, .jsonl, .npy",))
    elif not target.name:  # the present folder, or "file://out.npy", where "out.npy" is the name of a machine
        raise UsageError(
            f"{target} cannot be the name of an output", next=("give the path of a file, or of a folder that is not there yet",)
        )
    elif not target.parent.is_dir():
        raise UsageError(f"there is no folder {target.parent}", next=(f"mkdir -p {target.parent}",))
    if options.errors and not Path(options.errors).parent.is_dir():
        raise UsageError(f"there is no folder {Path(options.errors).parent} for the list of failed rows", next=("make it first",))
    for place in (target, Path(options.errors) if options.errors else None):
        if isinstance(place, Path) and _is_special(place):
            why = "what is written appears under its name when it is complete, and would take the place of the pipe or device"
            raise UsageError(f"{place} is not a file", why=why, next=("give the path of a file",))
    if keep and not kind.keeps_columns:
        raise UsageError(
            f"{target.suffix} holds {kind.without_columns}, so {keep[0]!r} cannot be kept in {target}",
            next=("write .parquet, .jsonl or .csv",),
        )
    check_names(list(dict.fromkeys(keep)))


def _is_special(path: Path) -> bool:
    with writing(path):  # asking raises if its name is too long
        return is_special(path)


def check_apart(target: Place, errors: str | os.PathLike[str] | None, used: dict[str, Any]) -> None:
    """Raise if what is written would replace what is read, or if one output would replace another."""
    written = {"output": target, **({"list of failed rows": Path(errors)} if errors else {})}
    for what, path in written.items():
        place = _resolved(path)
        for role, given in used.items():
            if isinstance(given, (str, os.PathLike)) and str(given) and _holds(place, _resolved(path_or_address(given))):
                raise UsageError(f"{path} is the {role}, or holds it, and would be replaced", next=(f"give another path for the {what}",))
    if errors and _holds(_resolved(target), Path(errors).resolve()):
        raise UsageError(f"{errors} is the output, or within it", next=("give another path for the list of failed rows",))


def check_replaceable(target: Path, options: Options, is_ours: bool) -> None:
    """Raise unless replacing the output was asked for; a folder is replaced only if everything in it was written by us."""
    if not options.overwrite and not (options.restart and is_ours):
        raise UsageError(f"{target} is already there", next=("give another --output, or --overwrite",))
    if target.is_dir() and any(target.iterdir()) and names_in(target) != read_marker(target).get("names"):
        why = "not all that is in this folder was written by rankwise predict, and would be deleted"
        raise UsageError(f"{target} is already there", why=why, next=("give another --output, or remove it yourself",))


def _resolved(place: Place) -> PurePath:
    """The path, resolved; for an address, something that no path of this machine can be."""
    return PurePosixPath(f"//{place.system.type_name}:/{place.path}") if isinstance(place, Address) else place.resolve()


def _holds(place: PurePath, other: PurePath) -> bool:
    return any(_is_same(place, each) for each in (other, *other.parents))


def _is_same(one: PurePath, other: PurePath) -> bool:
    """Also true for two paths of one file or folder (bind mounts, hard links)."""
    if one == other or not (isinstance(one, Path) and isinstance(other, Path)):
        return one == other
    try:
        return one.samefile(other)
    except OSError:  # one of them is not there
        return False
