"""Prints the memory (PSS, MB) of a pool with three small models: of all its processes, and of the parent alone.

`--workers 4` takes four instead of two, `--everywhere` loads all three in each, `--torch` has the parent import torch too.
"""

from __future__ import annotations

import argparse
import json

import numpy as np
import psutil

from rankwise.pool import Model, Pool

SHAPES = {"tiny": (1, 10), "cnn": (1, 3, 64, 64), "transformer": (1, 32, 128)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--everywhere", action="store_true")
    parser.add_argument("--torch", action="store_true")
    options = parser.parse_args()
    if options.torch:
        import torch  # noqa: F401
    replicas = {"replicas": options.workers} if options.everywhere else {}
    models = {name: Model(f"pool_models:{name}", **replicas) for name in SHAPES}
    with Pool(models, workers=options.workers) as pool:
        for _ in range(5):
            for name, shape in SHAPES.items():
                for future in [pool.submit(name, np.zeros(shape, np.float32)) for _ in range(options.workers)]:
                    future.result()
        me = psutil.Process()
        memory = {each.pid: each.memory_full_info().pss / 1e6 for each in [me, *me.children(recursive=True)]}
        print(json.dumps({"total": sum(memory.values()), "parent": memory[me.pid]}))


if __name__ == "__main__":
    main()
