"""A probe that cannot work, or breaks in the middle, changes nothing of what the script does."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.probe.probed import PROBE, Ended, probed_environment, run, run_bare, run_script, write_script

RANK = {"RANK": "0", "WORLD_SIZE": "1"}
# Ends in every way but the last one; the exit code says that it got there.
SCRIPT = """
import multiprocessing, os, subprocess, sys, threading

def child():
    raise ValueError("child")

if __name__ == "__main__":
    thread = threading.Thread(target=lambda: 1 / 0)
    thread.start()
    thread.join()
    for method in ("fork", "spawn"):
        process = multiprocessing.get_context(method).Process(target=child)
        process.start()
        process.join()
        print(method, process.exitcode)
    print(subprocess.run([sys.executable, "-c", "import os; os._exit(3)"]).returncode)
    os.kill(os.getpid(), 0)
    sys.exit(5)
"""
TRAINING = """
import os, shutil, sys, tempfile
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

if __name__ == "__main__":
    store = os.path.join(tempfile.mkdtemp(), "store")
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    if "--take-away" in sys.argv:
        shutil.rmtree(os.environ["RANKWISE_PROBE"])
    torch.manual_seed(0)
    model = DDP(torch.nn.Linear(4, 2))
    for batch in DataLoader(torch.ones(6, 4), batch_size=2, num_workers=1):
        model(batch).sum().backward()
    group = dist.new_group([0])
    dist.all_reduce(torch.ones(3), group=group)
    dist.barrier()
    objects = [None]
    dist.all_gather_object(objects, "x")
    print(objects, [round(float(p.grad.sum()), 3) for p in model.parameters()])
    dist.destroy_process_group()
    shutil.rmtree(os.path.dirname(store))
    sys.exit(5)
"""
TRAINED = "['x'] [48.0, 12.0]\n"


def is_unharmed(ended: Ended) -> bool:
    words = (ended.out + ended.err).lower()
    return (ended.code, ended.out) == (5, TRAINED) and "traceback" not in words and "rankwise" not in words


def test_a_folder_that_is_not_there(tmp_path: Path, live: Path) -> None:
    script = write_script(tmp_path, SCRIPT)
    expected = run_bare(script, live, **RANK)
    (tmp_path / "file").touch()

    for folder in (live / "gone", tmp_path / "file", Path("relative"), Path("/proc/self/nothing")):
        ended = run([sys.executable, script], folder, probed_environment(folder, **RANK), tmp_path)
        assert (ended.code, ended.out, ended.err) == (expected.code, expected.out, expected.err)


def test_a_folder_nobody_may_write_to(tmp_path: Path, live: Path) -> None:
    script = write_script(tmp_path, SCRIPT)
    expected = run_bare(script, live, **RANK)

    ended = _mounted("ro,size=1m", [sys.executable, script], live, tmp_path)

    assert (ended.code, ended.out, ended.err) == (expected.code, expected.out, expected.err)


@pytest.mark.live
def test_a_folder_with_no_room(tmp_path: Path, live: Path) -> None:
    """As when /dev/shm is full: the journal still fits, or not even that, and the ring never does."""
    script = write_script(tmp_path, TRAINING)

    ended = _mounted("size=12k", [sys.executable, script], live, tmp_path)

    assert is_unharmed(ended), ended.out + ended.err


@pytest.mark.live
def test_a_folder_taken_away_in_the_middle(tmp_path: Path, live: Path) -> None:
    script = write_script(tmp_path, TRAINING)

    ended = run_script(script, live, args=("--take-away",), **RANK)

    assert is_unharmed(ended), ended.out + ended.err
    assert not live.exists()


@pytest.mark.parametrize("module", ["__init__", "hooks", "exits", "journal", "sites", "streams", "process", "recording"])
@pytest.mark.parametrize("fault", ["raise RuntimeError('broken')", "def f(:", ""], ids=["raises", "syntax", "empty"])
def test_a_module_of_the_probe_that_is_broken(tmp_path: Path, live: Path, module: str, fault: str) -> None:
    script = write_script(tmp_path, "import subprocess, sys, threading; print('ran'); sys.exit(5)")
    probe = _copy_of_probe(tmp_path)
    (probe / f"{module}.py").write_text(fault)

    ended = run([sys.executable, script], live, probed_environment(live, probe=probe, **RANK))

    assert (ended.code, ended.out, ended.err) == (5, "ran\n", "")


@pytest.mark.live
def test_a_probe_that_fails_at_every_step(tmp_path: Path, live: Path) -> None:
    """Each part raises when it is used, not when it is imported."""
    script = write_script(tmp_path, TRAINING)
    probe = _copy_of_probe(tmp_path)
    fail = "\n\ndef _fail(*args, **kwargs):\n    raise KeyError('broken on purpose')\n\n"
    for module, names in {
        "ring": ["Ring.enter", "Ring.leave", "Ring.mark", "existing"],
        "server": ["start", "write_flight_recorder"],
        "ddp": ["_remember", "mark_backward"],
        "sites": ["number_of_caller", "stack_of"],
        "journal": ["write_process_info", "rank_environment"],
        "exits": ["note_exception"],
    }.items():
        with (probe / f"{module}.py").open("a") as file:
            file.write(fail + "".join(f"{name} = _fail\n" for name in names))

    ended = run([sys.executable, script], live, probed_environment(live, probe=probe, **RANK), tmp_path)

    assert is_unharmed(ended), ended.out + ended.err
    assert any("broken on purpose" in line["error"] for line in ended.lines("broken"))  # and it says what it could not do


def test_nobody_at_the_other_end_of_the_pipes(tmp_path: Path, live: Path) -> None:
    script = write_script(tmp_path, SCRIPT)
    expected = run_bare(script, live, **RANK)
    stat = Path("/dev/null").stat()
    pipes = f"{stat.st_dev}:{stat.st_ino}"

    ended = run_script(script, live, **RANK, RANKWISE_SINK=str(live / "sink"), RANKWISE_PIPES=f"{pipes},nonsense,")

    assert (ended.code, ended.out, ended.err) == (expected.code, expected.out, expected.err)


def _copy_of_probe(folder: Path) -> Path:
    copy = folder / "copied"
    shutil.copytree(PROBE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


def _mounted(options: str, command: list[str | Path], live: Path, cwd: Path) -> Ended:
    """Run with a small tmpfs of its own at `live`, seen by nobody else."""
    mount = f'mount -t tmpfs -o {options} none "$RANKWISE_PROBE" && exec "$@"'
    if subprocess.run(["unshare", "-m", "sh", "-c", f'mount -t tmpfs none "{live}"'], capture_output=True).returncode:
        pytest.skip("needs the right to mount a file system in a namespace of its own")
    return run(["unshare", "-m", "sh", "-c", mount, "sh", *command], live, probed_environment(live, **RANK), cwd)
