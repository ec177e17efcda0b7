"""The same models as a Celery user would serve them: the worker's tasks, and a client that sends many and collects the results.

`python -m celery -A with_celery worker` reads the first half. `python with_celery.py` sends what standard input asks for:
lines of a way, a model, a number of rows and a count; `1` as the last word sends one after the other.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import numpy as np
import torch
from celery import Celery
from celery.signals import worker_process_init
from ray_models import All, inputs_of

app = Celery("with_celery", broker=os.environ["BROKER"], backend=os.environ["BACKEND"])
app.conf.update(
    accept_content=["json", "pickle"], result_accept_content=["json", "pickle"], task_serializer="pickle", result_serializer="pickle",
    task_acks_late=True,  # a task whose worker dies is done again, as ours are
    worker_prefetch_multiplier=32, broker_connection_retry_on_startup=True,
)  # fmt: skip
_models: list[All] = []


@worker_process_init.connect
def load(**_: Any) -> None:
    _models.append(All())


@app.task
def run_array(name: str, x: np.ndarray) -> np.ndarray:
    return _models[0].run_array(name, x)


@app.task
def run_list(name: str, x: list[list[float]]) -> list[list[float]]:
    return _models[0].run(name, torch.tensor(x)).tolist()


def main() -> None:
    for line in sys.stdin:
        way, name, rows, count, *alone = line.split()
        x = inputs_of(name, int(rows))
        task, value, serializer = (run_list, x.tolist(), "json") if way == "json" else (run_array, x.numpy(), "pickle")
        started = time.perf_counter()
        if alone:
            results = [task.apply_async((name, value), serializer=serializer).get(timeout=100) for _ in range(int(count))]
        else:
            sent = [task.apply_async((name, value), serializer=serializer) for _ in range(int(count))]
            results = [one.get(timeout=100) for one in sent]
        print(time.perf_counter() - started, float(np.sum(results[-1])), flush=True)


if __name__ == "__main__":
    main()
