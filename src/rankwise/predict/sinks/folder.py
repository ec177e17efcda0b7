"""A folder with one .npy file per row and output, named after the input file or the row."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from rankwise.predict.parts import Results


def write_folder(parts: Callable[[], Iterable[Results]], total: int, path: Path) -> None:
    """Input `a/b.jpg` becomes `a/b.jpg.npy`, row 7 `00000007.npy`; several outputs have their names in front of `.npy`."""
    path.mkdir()
    for results in parts():
        names = [name for name in results.columns if name != "file"]
        files = results.columns.get("file", [f"{row:08}" for row in results.rows])
        for i, file in enumerate(files):
            for name in names:
                target = path / (f"{file}.npy" if len(names) == 1 else f"{file}.{name}.npy")
                target.parent.mkdir(parents=True, exist_ok=True)
                value = results.columns[name][i]
                if isinstance(value, (list, dict, str)):
                    target.with_suffix(".json").write_text(json.dumps(value))
                else:
                    np.save(target, np.asarray(value))
