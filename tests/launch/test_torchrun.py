"""Every option of torchrun does under `rankwise run` what it does under torchrun."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.launch.jobs import write_script

# No rank imports torch: torchrun itself is slow enough.
WORKER = """
import os, sys
rank, restarts = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
print(f"start {restarts} of rank {rank} with {sys.argv[1:]} in {os.path.basename(os.getcwd())}", flush=True)
print(f"error line of rank {rank} start {restarts}", file=sys.stderr, flush=True)
if rank == "1" and restarts == "0":
    raise ValueError("the first start of rank 1 fails")
"""


@pytest.mark.live
def test_a_module_restarted_with_its_output_teed(tmp_path: Path, run_rankwise: Callable[..., Any]) -> None:
    write_script(tmp_path, WORKER, "package/worker.py")
    options = ["--standalone", "--nproc-per-node", "2", "--max-restarts", "1", "--monitor-interval", "0.1"]
    tee = ["--tee", "3", "--log-dir", tmp_path / "torchrun-logs"]

    ran = run_rankwise("run", "--out", "out", *options, *tee, "-m", "package.worker", "--lr", "0.1", cwd=tmp_path, timeout_s=150)

    assert ran.code == 0, ran.text
    assert ran.verdict["outcome"] == "completed"
    assert all(finding["severity"] == "info" for finding in ran.verdict["findings"])  # a restart is worth a note, no more
    folder = tmp_path.name
    for rank in (0, 1):
        # The user asked torchrun to write files and to show them: both still happen.
        files = [path.read_text() for path in (tmp_path / "torchrun-logs").rglob("*.log") if path.parent.name == str(rank)]
        assert any(f"start 1 of rank {rank} with ['--lr', '0.1'] in {folder}" in text for text in files)
        assert f"start 1 of rank {rank}" in ran.stdout
        # And our own log is whole: both starts, both streams.
        log = (tmp_path / "out" / "logs" / f"rank-{rank}.log").read_text()
        for start in (0, 1):
            assert f"start {start} of rank {rank} with" in log
            assert f"error line of rank {rank} start {start}" in log
    assert "the first start of rank 1 fails" in (tmp_path / "out" / "logs" / "rank-1.log").read_text()


def test_a_program_that_is_not_python(tmp_path: Path, run_rankwise: Callable[..., Any]) -> None:
    script = 'echo "rank $RANK of $WORLD_SIZE: $0 $1"; [ "$RANK" = 0 ] || { echo "to stderr" >&2; exit 7; }'
    options = ["--standalone", "--nproc_per_node=2", "--no-python"]

    ran = run_rankwise("run", "--out", tmp_path / "out", *options, "bash", "-c", script, "name", "--out", timeout_s=150)

    assert ran.code == 1  # torchrun's own code for a failed worker
    assert "rank 0 of 2: name --out" in ran.stdout
    assert "rank 1 of 2: name --out" in ran.stdout
    assert ran.verdict["outcome"] == "crashed"
    assert [culprit["rank"] for culprit in ran.verdict["findings"][0]["culprits"]] == [1]


# Gloo leaves its ranks' addresses in the store; the ranks of the second start must not find those of the first.
RESTARTED = """
import os, time
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(2))
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    if dist.get_rank() == 1:
        raise ValueError("the first start fails")
    time.sleep(600)
print("fine", flush=True)
dist.destroy_process_group()
"""


@pytest.mark.live
def test_a_restart_works(tmp_path: Path, run_rankwise: Callable[..., Any]) -> None:
    script = write_script(tmp_path, RESTARTED)
    options = ["--standalone", "--nproc-per-node", "2", "--max-restarts", "1", "--monitor-interval", "0.1"]

    ran = run_rankwise("run", "--out", tmp_path / "out", *options, script, timeout_s=150)

    assert ran.code == 0, ran.text[-3000:]
    assert ran.stdout.count("fine") == 2
    assert "set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1" in (tmp_path / "out" / "logs" / "rankwise.log").read_text()


@pytest.mark.live
def test_who_has_decided_about_the_store_is_not_overruled(tmp_path: Path, run_rankwise: Callable[..., Any]) -> None:
    script = write_script(tmp_path, "import os; print('store', os.environ.get('TORCH_DISABLE_SHARE_RDZV_TCP_STORE'))")
    env = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "0"}

    ran = run_rankwise("run", "--out", tmp_path / "out", "--standalone", "--max-restarts", "1", script, env=env, timeout_s=150)

    assert "[rank 0] store 0" in ran.stdout
    assert not (tmp_path / "out" / "logs" / "rankwise.log").exists()


@pytest.mark.live
def test_an_option_of_the_script_that_torchrun_finds_ambiguous(tmp_path: Path, run_rankwise: Callable[..., Any]) -> None:
    """Python 3.11's argparse looks at all words: `--logs` behind the script could be `--logs-specs` or `--logs_specs`."""
    script = write_script(tmp_path, "import sys; print(sys.argv[1:])")

    ran = run_rankwise("run", "--out", tmp_path / "out", "--standalone", "--nproc-per", "1", script, "--logs", "x", "--", "-m")

    assert ran.code == 0, ran.text
    assert "[rank 0] ['--logs', 'x', '--', '-m']" in ran.stdout


@pytest.mark.live
def test_a_wrong_option_is_torchruns_to_refuse(tmp_path: Path, run_rankwise: Callable[..., Any]) -> None:
    script = write_script(tmp_path, "print('started')")

    ran = run_rankwise("run", "--out", tmp_path / "out", "--nproc-per-gnome", script, timeout_s=150)

    assert ran.code == 2
    assert "unrecognized arguments: --nproc-per-gnome" in ran.stderr
    assert "started" not in ran.stdout
    assert "rankwise/" not in ran.stderr
