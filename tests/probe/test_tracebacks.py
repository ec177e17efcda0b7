"""A traceback is the user's: it shows what it would show without the probe, wherever the probe has wrapped something."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.families import mostly_live
from tests.probe.probed import Ended, run_bare, run_script, write_script

# Each line fails inside something that the probe wraps; the traceback is printed as the user's code would print it.
PLAIN = """
import multiprocessing, os, subprocess, sys, traceback

def attempt(name, function):
    try:
        function()
    except BaseException:
        print("---", name)
        print(traceback.format_exc())

attempt("os.kill", lambda: os.kill(2**22 + 1, 0))
attempt("sys.exit", lambda: sys.exit(3))
attempt("exit", lambda: exit(3))
attempt("os._exit", lambda: os._exit("three"))
attempt("subprocess", lambda: subprocess.run(["/nowhere/program"]))
attempt("a module that is not there", lambda: __import__("torch_of_another_name"))
process = multiprocessing.get_context("fork").Process(target=os.kill, args=(2**22 + 1, 0))
process.start()
process.join()
"""
DISTRIBUTED = """
import os, tempfile, traceback
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

def attempt(name, function):
    try:
        function()
    except BaseException:
        print("---", name)
        print(traceback.format_exc())

class Broken(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)

    def forward(self, x):
        raise ValueError("bad batch")

class Data:
    def __len__(self):
        return 2

    def __getitem__(self, i):
        raise KeyError("sample", i)

store = f"file://{tempfile.mktemp()}"
attempt("all_reduce before init", lambda: dist.all_reduce(torch.ones(1)))
attempt("init of no backend", lambda: dist.init_process_group("nothing", init_method=store, rank=0, world_size=1))
dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)
attempt("all_reduce", lambda: dist.all_reduce("no tensor"))
attempt("broadcast", lambda: dist.broadcast(torch.ones(1), src=7))
attempt("new_group", lambda: dist.new_group([0, 1, 2]))
attempt("ddp", lambda: DistributedDataParallel(torch.nn.ReLU()))
attempt("forward", lambda: DistributedDataParallel(Broken())(torch.ones(2)))
attempt("batch", lambda: next(iter(DataLoader(Data()))))
attempt("batches", lambda: list(DataLoader(Data(), num_workers=1)))
attempt("end of data", lambda: next(iter(DataLoader([]))))
attempt("functional", lambda: torch.distributed._functional_collectives.all_reduce(torch.ones(1), "sum", "no group"))
dist.destroy_process_group()
attempt("destroy", dist.destroy_process_group)
raise RuntimeError("the end")
"""
PROCESS_ID = re.compile(r"(pid|Process|process) \d+|at 0x[0-9a-f]+|/tmp/\S+")


@pytest.mark.parametrize("script", mostly_live([PLAIN, DISTRIBUTED]), ids=["plain", "distributed"])
def test_tracebacks_are_as_they_would_be(tmp_path: Path, live: Path, script: str) -> None:
    path = write_script(tmp_path, script)
    ours = run_script(path, live, RANK="0", WORLD_SIZE="1", TMPDIR=str(tmp_path))
    bare = run_bare(path, live, RANK="0", WORLD_SIZE="1", TMPDIR=str(tmp_path))

    assert bare.out.count("---") > 5
    assert told(ours) == told(bare)
    assert "probe" not in ours.out + ours.err


def told(ended: Ended) -> list[str]:
    """What is not the same twice (numbers of processes, temporary names) taken out."""
    text = ended.out + ended.err
    return [PROCESS_ID.sub("", line) for line in text.splitlines() if not re.match(r"\[[WIE]\d+ ", line)]
