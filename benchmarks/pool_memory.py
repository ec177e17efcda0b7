"""Prints the memory (PSS, MB) of a pool with three small models: of all its processes, and of each worker."""

from __future__ import annotations

import json
import sys

import numpy as np
import psutil

from rankwise.pool import Model, Pool

SHAPES = {"tiny": (1, 10), "cnn": (1, 3, 64, 64), "transformer": (1, 32, 128)}


def main() -> None:
    if "--torch" in sys.argv:
        import torch  # noqa: F401
    with Pool({name: Model(f"pool_models:{name}") for name in SHAPES}, workers=2) as pool:
        for _ in range(5):
            for name, shape in SHAPES.items():
                pool.submit(name, np.zeros(shape, np.float32)).result()
        me = psutil.Process()
        memory = {each.pid: each.memory_full_info().pss / 1e6 for each in [me, *me.children(recursive=True)]}
        workers = [memory[worker["pid"]] for worker in pool.stats()["workers"]]
        print(json.dumps({"total": sum(memory.values()), "workers": workers, "parent": memory[me.pid]}))


if __name__ == "__main__":
    main()
