"""The pool in a notebook: `__main__` has no file, cells are run by exec, and an event loop is running already."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

ROOT = Path(__file__).parents[3]
# What IPython does: each cell is compiled with top-level await allowed, and run in `__main__` on a loop that goes on running.
KERNEL = """
import ast, asyncio, inspect, json, sys
async def run_cells(cells):
    for number, cell in enumerate(cells):
        code = compile(cell, f"<cell {number}>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        value = eval(code, sys.modules["__main__"].__dict__)
        if inspect.iscoroutine(value):
            await value
assert not hasattr(sys.modules["__main__"], "__file__")
asyncio.run(run_cells(json.loads(sys.stdin.read())))
"""
SETUP = """
import torch, rankwise
factor = 3.0
class Times(torch.nn.Module):
    def __init__(self, by):
        super().__init__()
        self.by = by
    def forward(self, x):
        return x * self.by
def build():
    return Times(factor)
"""
BOX = """
class Box:
    def __init__(self, x):
        self.x = x
    def __mul__(self, by):
        return Box(self.x * by)
"""
OPEN = """pool = rankwise.Pool({"named": rankwise.Model(build), "nameless": rankwise.Model(lambda: Times(2 * factor))}, workers=1)"""


def run_cells(*cells: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", KERNEL], input=json.dumps(cells), capture_output=True, text=True, timeout=100, cwd=ROOT)


@pytest.mark.live
def test_functions_of_cells_and_a_running_loop() -> None:
    done = run_cells(
        SETUP,
        OPEN,
        "factor = 100.0",  # a cell run later does not reach what was sent before
        "print(pool.submit('named', torch.ones(1)).result().item(), [y.item() for y in pool.map('nameless', [torch.ones(1)] * 2)])",
        "print((await pool.asubmit('named', torch.tensor([2.0]))).item())",
        "print([y.item() async for y in pool.amap('named', [torch.tensor([float(i)]) for i in range(3)])])",
        "import asyncio\nprint([y.item() for y in await asyncio.gather(*[pool.asubmit('nameless', torch.ones(1)) for _ in range(3)])])",
        BOX,
        "local = rankwise.Pool({'named': rankwise.Model(build)}, workers=0)",
        "print([(type(y) is Box, y.x) for y in [each.submit('named', Box(2.0)).result() for each in (pool, local)]])",
        "print(Box.__mul__.__globals__ is globals())",
        "pool.close()",
    )

    assert done.returncode == 0, done.stderr
    values, boxes = ["3.0 [6.0, 6.0]", "6.0", "[0.0, 3.0, 6.0]", "[6.0, 6.0, 6.0]"], ["[(True, 6.0), (True, 200.0)]", "True"]
    assert done.stdout.splitlines() == values + boxes


@pytest.mark.live
def test_predict_with_a_function_of_a_cell(tmp_path: Path) -> None:
    done = run_cells(
        SETUP,
        f"done = rankwise.predict(build, [torch.ones(2)] * 20, {str(tmp_path / 'out.npy')!r}, workers=1, batch=8)",
        f"import numpy; print(done.rows, numpy.load({str(tmp_path / 'out.npy')!r}).sum())",
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["20", "120.0"]


@pytest.mark.live
def test_a_kernel_that_ends_without_closing_leaves_nobody() -> None:
    done = run_cells(SETUP, OPEN, "print((await pool.asubmit('named', torch.ones(1))).item())", "print(pool.stats()['workers'][0]['pid'])")

    assert done.returncode == 0, done.stderr
    value, pid = done.stdout.split()
    assert value == "3.0" and not Path(f"/proc/{pid}").exists()


@pytest.mark.live
@pytest.mark.parametrize(
    ("cell", "words"),
    [
        ("import sys; sys.modules['cloudpickle'] = None", ["in a notebook, at a prompt", "rankwise[notebook]"]),
        ("import threading; factor = threading.Lock()", ["cannot be sent to a worker", "lock"]),
    ],
    ids=["without cloudpickle", "what cannot travel"],
)
def test_what_does_not_work_is_said(cell: str, words: list[str]) -> None:
    opened = f"try:\n    {OPEN}\nexcept rankwise.errors.UsageError as error:\n    print(error.finding)"
    done = run_cells(SETUP, cell, opened)

    assert done.returncode == 0, done.stderr
    assert all(word in done.stdout for word in words), done.stdout
