"""Builds and inputs of the user's script, and what outputs are called."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import rankwise
from rankwise.pool.api.model import become_like_the_caller, by_text, named_list, output_names
from tests.families import mostly_live

pytest.importorskip("torch")
SCRIPT = """
import os, sys, numpy, torch, rankwise
print("run as", __name__)
class Times(torch.nn.Module):
    def forward(self, x):
        return x * 3
def build(make=Times):
    return make()
if __name__ == "__main__":
    workers = int(sys.argv[1])
    models = {"m": rankwise.Model(build, args=(Times,)), "n": rankwise.Model("torch.nn:Sequential", args=(Times(),))}
    with rankwise.Pool(models, workers=workers) as pool:
        os.chdir("/")
        print(pool.submit("m", torch.ones(1)).result().item(), pool.submit("n", torch.ones(1)).result().item())
    print(os.getcwd(), sys.modules["__main__"].__name__)
    os.chdir(os.path.dirname(__file__))
    print(rankwise.predict(build, [torch.ones(2)] * 20, "out.npy", workers=workers, batch=8).rows, numpy.load("out.npy").sum())
"""


@pytest.mark.parametrize("workers", mostly_live([1, 0]))
def test_a_scripts_own_functions_reach_the_workers_and_the_script_runs_once_here(tmp_path: Path, workers: int) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, str(tmp_path / "script.py"), str(workers)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line != "run as __mp_main__"]
    assert lines == ["run as __main__", "3.0 3.0", "/ __main__", "20 120.0"]
    assert ("__mp_main__" in done.stdout) == bool(workers)


class OfNoModule:
    """As a tensor's qscheme: pickled by a name, which pickle has to find among all modules."""

    __module__ = None  # type: ignore[assignment]

    def __reduce__(self) -> str:
        return "found_in_no_module"


def test_a_worker_does_not_run_the_script_to_pickle_what_is_not_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "script.py").write_text("raise SystemExit('run')\nwanted = 1")
    for name in ("__main__", "__mp_main__"):
        monkeypatch.setitem(sys.modules, name, sys.modules["__main__"])
    monkeypatch.delitem(sys.modules, "__mp_main__")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    spec = pickle.loads(rankwise.Model("my_models:build").spec("m", "cpu", 0))
    become_like_the_caller({**spec, "script": str(tmp_path / "script.py"), "module": ""})

    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(OfNoModule())
    with pytest.raises(SystemExit, match="run"):
        pickle.loads(b"c__main__\nwanted\n.")


UNCLOSED = """
import rankwise, sys
def build():
    import time
    return lambda seconds, tag: (time.sleep(seconds), tag)[1]
if __name__ == "__main__":
    pool = rankwise.Pool({"m": rankwise.Model(build)}, workers=1)
    pool.submit("m", 0.0, "first").result()
    for tag in "abc":
        pool.submit("m", float(sys.argv[1]), tag).add_done_callback(lambda future: print(future.exception() or future.result(), flush=True))
    print("the end", flush=True)
    if sys.argv[2:]:
        raise KeyboardInterrupt
"""


def test_a_script_that_ends_without_closing_finishes_what_it_submitted(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(UNCLOSED)
    done = subprocess.run([sys.executable, str(tmp_path / "script.py"), "0.05"], capture_output=True, text=True, timeout=100)

    assert done.stdout.split("\n") == ["the end", "a", "b", "c", ""] and done.returncode == 0, done.stderr


@pytest.mark.live
def test_a_script_that_was_interrupted_waits_for_nothing(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(UNCLOSED)
    command = [sys.executable, str(tmp_path / "script.py"), "60", "interrupted"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50)

    assert done.stdout.count("the pool is closed") == 3 and done.returncode != 0


@pytest.mark.live
def test_an_interrupt_ends_the_wait_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(UNCLOSED)
    with subprocess.Popen([sys.executable, str(tmp_path / "script.py"), "60"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as script:
        assert script.stdout is not None and script.stdout.readline() == b"the end\n"
        while script.poll() is None:  # the first may come before the wait has begun
            script.send_signal(signal.SIGINT)
            try:
                script.wait(1)
            except subprocess.TimeoutExpired:
                pass
        rest = script.stdout.read().decode()

    assert rest.count("the pool is closed") == 3


UNDER_THE_GUARD = """
import rankwise, torch
if __name__ == "__main__":
    def build():
        return torch.nn.Identity()
    with rankwise.Pool({"m": rankwise.Model(build)}, workers=1) as pool:
        error = pool.submit("m", torch.ones(1)).exception(60)
        print(error.finding.summary, error.finding.next)
"""
OWN_CLASS = """
import dataclasses, rankwise
@dataclasses.dataclass
class Mine:
    a: int
if __name__ == "__main__":
    with rankwise.Pool({"m": rankwise.Model("torch.nn:Identity")}, workers=1) as pool:
        print(pool.submit("m", 1).result(60), pool.submit("m", Mine(4)).result(60), pool.submit("m", [Mine(5)]).result(60))
"""
CLOSED_AT_ONCE = """
import rankwise
if __name__ == "__main__":
    with rankwise.Pool({"m": rankwise.Model("torch.nn:Identity")}, workers=1):
        pass
    print("closed")
"""


@pytest.mark.live
@pytest.mark.parametrize(
    ("script", "said"),
    [(UNDER_THE_GUARD, "move its definition above that line"), (OWN_CLASS, "1 Mine(a=4) [Mine(a=5)]"), (CLOSED_AT_ONCE, "closed")],
    ids=["a build under the guard", "a class of the script", "closed at once"],
)
def test_scripts_get_what_they_mean_or_are_told_why_not(tmp_path: Path, script: str, said: str) -> None:
    (tmp_path / "script.py").write_text(script)
    done = subprocess.run([sys.executable, "script.py"], capture_output=True, text=True, timeout=100, cwd=tmp_path)

    assert done.returncode == 0 and said in done.stdout, done.stderr
    assert "Traceback" not in done.stderr or script is UNDER_THE_GUARD  # the log shows that one


IN_A_PACKAGE = """
import rankwise, torch
from .layers import Plus
def build():
    return Plus()
class Mine:
    y = 4.0
if __name__ == "__main__":
    with rankwise.Pool({"m": rankwise.Model(build)}, workers=1) as pool:
        print(pool.submit("m", torch.ones(1)).result(60).item(), pool.submit("m", Mine()).result(60))
"""
PLUS = """
import torch
class Plus(torch.nn.Module):
    def forward(self, x):
        return getattr(x, "y", x) + 1
"""


@pytest.mark.live
@pytest.mark.parametrize("name", ["train", "__main__"])
def test_a_script_that_is_run_as_a_module_may_import_from_its_package(tmp_path: Path, name: str) -> None:
    (tmp_path / "app").mkdir()
    for file, text in {"__init__": "", "layers": PLUS, name: IN_A_PACKAGE}.items():
        (tmp_path / f"app/{file}.py").write_text(text)
    module = "app" if name == "__main__" else f"app.{name}"
    done = subprocess.run([sys.executable, "-m", module], capture_output=True, text=True, timeout=100, cwd=tmp_path)

    assert done.stdout == "2.0 5.0\n", done.stderr


ANOTHER_FIRST = """
import sys
sys.path.insert(0, sys.argv[1])
import rankwise, torch
if __name__ == "__main__":
    with rankwise.Pool({"m": rankwise.Model("torch.nn:Identity")}, workers=1) as pool:
        print(pool.submit("m", torch.ones(1)).result(60).item())
"""


@pytest.mark.live
def test_workers_run_the_rankwise_that_the_caller_has_imported(tmp_path: Path) -> None:
    (tmp_path / "other/rankwise").mkdir(parents=True)
    (tmp_path / "other/rankwise/__init__.py").write_text("raise ImportError('this is another one')")
    (tmp_path / "script.py").write_text(ANOTHER_FIRST)
    ours, others = str(Path(rankwise.__file__).parents[1]), {**os.environ, "PYTHONPATH": str(tmp_path / "other")}
    done = subprocess.run([sys.executable, "script.py", ours], capture_output=True, text=True, timeout=100, cwd=tmp_path, env=others)

    assert done.stdout == "1.0\n", done.stderr


NO_TORCH = """
import collections, sys, numpy as np, rankwise
if __name__ == "__main__":
    with rankwise.Pool({"m": rankwise.Model("tests.pool.models:asked")}, workers=1) as pool:
        y = pool.submit("m", "pair", np.ones(2)).result(60)
        print(type(y).__name__, y.a.tolist(), type(y.b["in"]).__name__, y.b["in"]["b"].tolist())
"""


@pytest.mark.live
def test_named_tuples_and_ordered_dicts_hold_arrays_where_arrays_were_given(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(NO_TORCH)
    root = Path(__file__).parents[3]
    env = {**os.environ, "PYTHONPATH": f"{root / 'src'}:{root}"}
    done = subprocess.run([sys.executable, str(tmp_path / "script.py")], capture_output=True, text=True, timeout=100, env=env)

    assert done.stdout.strip() == "Pair [1.0, 1.0] OrderedDict [2.0, 2.0]", done.stderr


def test_one_is_output_and_several_are_numbered_unless_declared() -> None:
    assert output_names(None) == ["output"] and output_names(2) == ["output_0", "output_1"] and output_names(1) == ["output_0"]
    assert output_names(None, ["y"]) == ["y"] and output_names(2, ["a", "b"]) == ["a", "b"]
    assert output_names(2, ["a"]) == ["output_0", "output_1"] and output_names(None, ["a", "b"]) == ["output"]
    assert named_list([3, 4]) == {"output_0": 3, "output_1": 4}


def test_names_that_are_the_same_text_are_not_chosen_between() -> None:
    assert by_text({1: "a", "b": 2}) == {"1": "a", "b": 2}
    with pytest.raises(TypeError, match="two names are '1' as text"):
        by_text({1: "a", "1": "b"})


def test_a_script_that_another_program_runs_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import rankwise\ndef build(): ...\nrankwise.Pool({'m': rankwise.Model(build)}, workers=1)\n")
    done = subprocess.run([sys.executable, "-m", "trace", "-T", "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=100)

    assert "python -m trace" in done.stderr or sys.version_info >= (3, 12), done.stderr


def _leaves_a_pool_open(results: Any) -> None:
    pool = rankwise.Pool({"slow": rankwise.Model("tests.pool.models:slow_rows", args=(0.1,))}, workers=1)
    for i in range(3):
        pool.submit("slow", float(i)).add_done_callback(lambda done: results.put(done.result(0)))


def test_a_process_of_multiprocessing_finishes_what_it_submitted() -> None:
    context = multiprocessing.get_context("fork")  # such a process runs no exit handlers
    results = context.Queue()
    process = context.Process(target=_leaves_a_pool_open, args=(results,))
    process.start()

    assert [results.get(timeout=60) for _ in range(3)] == [0.0, 2.0, 4.0]
    process.join(60)
    assert process.exitcode == 0
