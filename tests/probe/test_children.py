"""Children of every kind ride along, whoever their parent is, and end as they would without the probe."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.probe.probed import line_of, probed_environment, run, run_bare, run_script, write_script

FAMILY = """
import multiprocessing as mp
import sys
import threading

def fine():
    print("child runs", mp.current_process().name, flush=True)

def raises():
    raise ValueError("from the child")  # here

def exits():
    sys.exit(3)  # exit

class Own:
    def run(self):
        raise LookupError("from a class of its own")  # own

class OwnFork(Own, mp.get_context("fork").Process):
    pass

class OwnSpawn(Own, mp.get_context("spawn").Process):
    pass

class OwnForkserver(Own, mp.get_context("forkserver").Process):
    pass

def main(method):
    context = mp.get_context(method)
    own = {"fork": OwnFork, "spawn": OwnSpawn, "forkserver": OwnForkserver}[method]
    for child in [*(context.Process(target=target, name=target.__name__) for target in (fine, raises, exits)), own(name="own")]:
        child.start()
        child.join()
        print(child.name, child.exitcode, flush=True)
    with context.Pool(1) as pool:
        print(pool.map(abs, [-1, 2]), flush=True)

if __name__ == "__main__":
    main(sys.argv[1])
"""


@pytest.mark.parametrize("rank", [{}, {"RANK": "0", "WORLD_SIZE": "1"}], ids=["helper", "rank"])
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing_children(tmp_path: Path, live: Path, method: str, rank: dict[str, str]) -> None:
    script = write_script(tmp_path, FAMILY, "family.py")
    strays = set(Path("/").glob("p-*.jsonl"))

    with_probe = run_script(script, live, args=(method,), **rank)
    without = run_bare(script, live, args=(method,), **rank)

    assert (with_probe.code, with_probe.out) == (without.code, without.out) == (0, without.out)
    assert with_probe.err == without.err  # tracebacks included: no frame of the probe in them
    raised = {line["type"]: line for line in with_probe.lines("raise")}
    assert [str(script), line_of(script, "here"), "raises"] in raised["ValueError"]["frames"]
    assert [str(script), line_of(script, "own"), "run"] in raised["LookupError"]["frames"]
    exits = [line for line in with_probe.lines("exit") if line["kind"] == "sys_exit" and line["code"] == 3]
    assert len(exits) == 1
    if rank or method == "spawn":  # aboard since the start, so it could see the call
        assert [str(script), line_of(script, "exit"), "exits"] in exits[0]["frames"][:2]
    assert not set(Path("/").glob("p-*.jsonl")) - strays


def test_subprocesses_of_every_kind_ride_along(tmp_path: Path, live: Path) -> None:
    """RANK given to children only: home-made launchers, shells between, -m and -c."""
    (tmp_path / "package").mkdir()
    boom = "raise OSError('rank')\n"
    write_script(tmp_path / "package", boom, "worker.py")
    write_script(tmp_path, boom, "worker.py")
    launcher = write_script(
        tmp_path,
        """
        import os, subprocess, sys
        python = sys.executable
        commands = [[python, "worker.py"], [python, "-m", "package.worker"], [python, "-c", "raise OSError('rank')"],
                    ["sh", "-c", python + " worker.py; exit 5"], [python, "-X", "utf8", "-W", "ignore", "-u", "worker.py"]]
        for rank, command in enumerate(commands):
            done = subprocess.run(command, env={**os.environ, "RANK": str(rank)}, capture_output=True)
            print(rank, done.returncode, b"OSError: rank" in done.stderr)
        """,
        "launcher.py",
    )
    with_probe, without = run_script(launcher, live), run_bare(launcher, live)

    assert (with_probe.code, with_probe.out, with_probe.err) == (without.code, without.out, without.err) == (0, without.out, "")
    ranks = sorted(line["env"]["RANK"] for line in with_probe.lines("process"))
    assert ranks == ["0", "1", "2", "3", "4"]
    assert len(with_probe.lines("raise")) == 5
    assert sorted(line["code"] for line in with_probe.lines("child_exit")) == [1, 1, 1, 1, 5]  # and their parent saw them end


def test_an_interpreter_without_our_environment_runs_unwatched(tmp_path: Path, live: Path) -> None:
    script = write_script(tmp_path, "import os; print(sorted(os.environ)); raise SystemExit(4)")

    ended = run([sys.executable, "-I", script], live, probed_environment(live, RANK="0"))

    assert ended.code == 4
    assert not list(live.iterdir())


def test_grandchildren_through_executors(tmp_path: Path, live: Path) -> None:
    script = write_script(
        tmp_path,
        """
        import concurrent.futures as futures, multiprocessing as mp, os, sys

        def inner(x):
            return x + 1

        def outer(x):
            with futures.ProcessPoolExecutor(1, mp_context=mp.get_context("spawn")) as pool:
                return pool.submit(inner, x).result()

        def fail(x):
            raise ZeroDivisionError(x)

        if __name__ == "__main__":
            with futures.ProcessPoolExecutor(1, mp_context=mp.get_context("spawn")) as pool:
                print(pool.submit(outer, 40).result())
                try:
                    pool.submit(fail, 7).result()
                except ZeroDivisionError as error:
                    print("caught", error)
            child = mp.get_context("spawn").Process(target=os._exit, args=(9,))
            child.start()
            child.join()
            print(child.exitcode)
        """,
    )

    with_probe, without = run_script(script, live, RANK="0"), run_bare(script, live, RANK="0")

    assert (with_probe.code, with_probe.out, with_probe.err) == (without.code, without.out, without.err) == (0, "41\ncaught 7\n9\n", "")


def test_a_child_of_python_without_a_site_is_left_alone(tmp_path: Path, live: Path) -> None:
    for flags in (["-S"], ["-E"], ["-s"]):
        ended = run([sys.executable, *flags, "-c", "print('hello')"], live, probed_environment(live))

        assert (ended.code, ended.out, ended.err) == (0, "hello\n", "")


def test_pids_in_journals_are_the_writers_own(tmp_path: Path, live: Path) -> None:
    script = write_script(tmp_path, FAMILY, "family.py")
    ended = run([sys.executable, script, "fork"], live, {**probed_environment(live), "RANK": "0"}, tmp_path)

    assert ended.code == 0
    for pid, lines in ended.journals().items():
        assert all(line["pid"] == pid for line in lines if line["k"] == "process")
