"""the user's code

With `--script train.py`: is the script, and every module beside it that it imports, the same on every host? Compared by hash; the files
themselves do not travel.

Fails with RW622.
"""

from __future__ import annotations

import ast
import hashlib
from pathlib import Path

from rankwise.preflight.facts import CheckedJob, Facts, Here, Seen, seeing_hosts

GROUP = "parity"
_MOST_FILES = 500
_LARGEST = 8 << 20


def look(here: Here) -> Facts:
    script = here.plan.script
    if script is None:
        return {"blind": "no --script was given"}
    root = script.absolute().parent
    hashes: dict[str, str] = {}
    waiting = [script.absolute()]
    while waiting and len(hashes) < _MOST_FILES:
        path = waiting.pop()
        key = str(path.relative_to(root))
        if key not in hashes and path.is_file() and path.stat().st_size <= _LARGEST:
            source = path.read_bytes()
            hashes[key] = hashlib.sha256(source).hexdigest()[:16]
            waiting += _imported(source, root)
    return {"files": hashes, "script": script.name}


def _imported(source: bytes, root: Path) -> list[Path]:
    """The files beside the script that this source imports, also inside functions; packages with their __init__."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return []
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            names |= {base, *(f"{base}.{alias.name}".strip(".") for alias in node.names)}
    places = [root.joinpath(*name.split(".")) for name in names if name]
    return [path for place in places for path in (place.with_suffix(".py"), place / "__init__.py") if path.is_file()]


def judge(job: CheckedJob, seen: Seen) -> None:
    facts_of = {host.name: facts["files"] for host, facts in seeing_hosts(job, "code", seen)}
    for name, files in facts_of.items():
        whole = hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()[:8]
        seen.values[name] = f"{len(files)} file{'s' * (len(files) != 1)}, {whole}"
    for path in sorted({path for files in facts_of.values() for path in files}):
        seen.add_difference("RW622", path, {name: files.get(path, "not there") for name, files in facts_of.items()}, job)
