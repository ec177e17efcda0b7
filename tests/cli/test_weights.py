"""`rankwise weights` as from a shell: what it prints, writes, and refuses."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

import rankwise
from rankwise.cli.main import main
from tests.weights.nets import Net, Tied
from tests.weights.test_corpus import assert_same, expected

MODELS = """
import sys
sys.path.insert(0, {root!r})
from tests.weights.nets import Net, Tied
import torch

def build():
    return Net()

def noisy():
    class Noisy(Net):
        def forward(self, x):
            return super().forward(x) + torch.rand(())
    return Noisy()

def broken():
    raise RuntimeError("no such luck")

not_a_model = 3
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "my_nets.py").write_text(MODELS.format(root=str(Path(__file__).parents[2])))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "my_nets", raising=False)
    return tmp_path


def test_inspect_is_a_table(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["weights", "inspect", str(corpus / "training.pt")]) == 0

    text = capsys.readouterr().out
    assert "looks like   torch zip, wrapped by DistributedDataParallel" in text
    assert "epoch: 3" in text
    assert "model: weights, 11 tensors" in text
    assert "prefix 'module.' in 11 of 11 names" in text
    assert "optimizer" in text and "training state" in text
    row = next(line for line in text.splitlines() if "module.head.weight" in line)
    assert row.split() == ["module.head.weight", "float32", "3×16", "192", "B"]


def test_inspect_loads_no_torch(corpus: Path) -> None:
    code = "import sys; from rankwise.cli.main import main; main(sys.argv[1:]); sys.exit('torch' in sys.modules)"

    done = subprocess.run(
        [sys.executable, "-c", code, "weights", "inspect", str(corpus / "dcp_fsdp2")], capture_output=True, text=True, timeout=60
    )

    assert done.returncode == 0, done.stderr
    assert "body.0.weight" in done.stdout


def test_inspect_as_json_and_verified(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["weights", "inspect", str(corpus / "tied.pt"), "--json", "--verify"]) == 0

    facts = json.loads(capsys.readouterr().out)
    tensors = {tensor["name"]: tensor for tensor in facts["weights"][0]["tensors"]}
    assert tensors["embedding.weight"]["shape"] == [11, 6]
    assert tensors["head.weight"]["same_as"] == "embedding.weight"
    assert facts["verified_bytes"] == sum(tensor["bytes"] for tensor in tensors.values() if "same_as" not in tensor)


@pytest.mark.parametrize("name", ["compiled_ddp_of_compiled.pt", "dcp_fsdp2", "hub_sharded", "legacy_ddp.pt", "ema.pt", "views.pt"])
def test_convert_writes_what_safetensors_itself_reads(corpus: Path, folder: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["weights", "convert", str(corpus / name), "plain.safetensors"]) == 0

    assert "compared bit by bit" in capsys.readouterr().out
    state = safetensors.torch.load_file(folder / "plain.safetensors")
    model = Net()
    model.load_state_dict(state)
    assert_same(model, expected(corpus))


def test_convert_writes_a_tied_tensor_once(corpus: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["weights", "convert", str(corpus / "tied.pt"), "plain.safetensors", "--json"]) == 0

    assert json.loads(capsys.readouterr().out)["same_tensor"] == {"head.weight": "embedding.weight"}
    model = Tied()
    safetensors.torch.load_model(model, str(folder / "plain.safetensors"))
    assert_same(model, expected(corpus, "expected_tied.pt"))
    untied = Tied()
    untied.head.weight = torch.nn.Parameter(untied.head.weight.detach().clone())
    rankwise.load_weights(untied, folder / "plain.safetensors")
    assert torch.equal(untied.head.weight, untied.embedding.weight)


def test_convert_to_a_narrower_dtype_and_a_part(corpus: Path, folder: Path) -> None:
    assert (
        main(["weights", "convert", str(corpus / "lightning.ckpt"), "plain.safetensors", "--dtype", "bfloat16", "--prefix", "net.body."])
        == 0
    )

    state = safetensors.torch.load_file(folder / "plain.safetensors")
    assert set(state) == {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert torch.equal(state["0.weight"], expected(corpus)["body.0.weight"].bfloat16())


def test_convert_compares_outputs_where_it_can(corpus: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build = ["--build", "my_nets:build", "--example", "float32[5,4]"]

    assert main(["weights", "convert", str(corpus / "ddp.pt"), "plain.safetensors", *build]) == 0

    assert "outputs agree: largest relative difference 0" in capsys.readouterr().out


def test_convert_compares_outputs_of_the_part_that_was_asked_for(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = Net().state_dict()
    torch.save({f"{side}.{name}": value for side in ("student", "teacher") for name, value in state.items()}, folder / "two.pt")
    build = ["--build", "my_nets:build", "--example", "float32[5,4]"]

    assert main(["weights", "convert", "two.pt", "plain.safetensors", "--prefix", "teacher.", *build]) == 0

    assert "outputs agree" in capsys.readouterr().out


def test_an_older_output_stays_where_the_new_one_is_not_kept(corpus: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "plain.safetensors").write_bytes(b"older")
    build = ["--build", "my_nets:build", "--example", "float32[5,3]", "--overwrite"]

    assert main(["weights", "convert", str(corpus / "ddp.pt"), "plain.safetensors", *build]) == 2

    assert (folder / "plain.safetensors").read_bytes() == b"older"
    assert sorted(path.name for path in folder.iterdir() if path.is_file()) == ["my_nets.py", "plain.safetensors"]


def test_convert_to_a_program_that_takes_any_batch(corpus: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build = ["--build", "my_nets:build", "--example", "float32[5,4]", "--dynamic-batch", "--json"]

    assert main(["weights", "convert", str(corpus / "compiled_ddp.pt"), "net.pt2", *build]) == 0

    facts = json.loads(capsys.readouterr().out)
    assert facts["largest_difference"] < 1e-5
    assert facts["model_ms"] > 0 and facts["program_ms"] > 0
    reference = Net().eval()
    reference.load_state_dict(expected(corpus))
    program = torch.export.load("net.pt2").module()
    for rows in (1, 7):
        x = torch.randn(rows, 4)
        assert torch.allclose(program(x), reference(x), atol=1e-5)
    assert [path.name for path in folder.iterdir() if path.name.startswith(".")] == []


def test_a_program_that_computes_something_else_is_not_kept(corpus: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build = ["--build", "my_nets:noisy", "--example", "float32[5,4]"]

    assert main(["weights", "convert", str(corpus / "ddp.pt"), "net.pt2", *build]) == 2

    assert capsys.readouterr().err.startswith("RW739")
    assert sorted(path.name for path in folder.iterdir() if path.is_file()) == ["my_nets.py"]


WRONG: dict[str, tuple[list[str], str]] = {
    "no action": (["weights"], ""),
    "not there": (["weights", "inspect", "nowhere.pt"], "RW002"),
    "not a checkpoint": (["weights", "inspect", "my_nets.py"], "RW733"),
    "other suffix": (["weights", "convert", "ddp.pt", "out.onnx"], "RW001"),
    "no name": (["weights", "convert", "ddp.pt", "."], "RW001"),
    "program without build": (["weights", "convert", "ddp.pt", "out.pt2"], "RW001"),
    "no such module": (["weights", "convert", "ddp.pt", "out.pt2", "--build", "nowhere:build", "--example", "float32[5,4]"], "RW001"),
    "no such callable": (["weights", "convert", "ddp.pt", "out.pt2", "--build", "my_nets:nothing", "--example", "float32[5,4]"], "RW001"),
    "no callable": (["weights", "convert", "ddp.pt", "out.pt2", "--build", "my_nets:not_a_model", "--example", "float32[5,4]"], "RW001"),
    "no model": (["weights", "convert", "ddp.pt", "out.pt2", "--build", "os:getcwd", "--example", "float32[5,4]"], "RW001"),
    "build fails": (["weights", "convert", "ddp.pt", "out.pt2", "--build", "my_nets:broken", "--example", "float32[5,4]"], "RW001"),
    "import fails": (["weights", "convert", "ddp.pt", "out.pt2", "--build", "bad_nets:build", "--example", "float32[5,4]"], "RW001"),
    "wrong example": (["weights", "convert", "ddp.pt", "out.pt2", "--build", "my_nets:build", "--example", "float32[5,3]"], "RW001"),
    "wrong example for both": (
        ["weights", "convert", "ddp.pt", "out.safetensors", "--build", "my_nets:build", "--example", "float32[5,3]"],
        "RW001",
    ),
    "no example": (["weights", "convert", "ddp.pt", "out.pt2", "--build", "my_nets:build", "--example", "float3[5"], "RW001"),
    "no folder": (["weights", "convert", "ddp.pt", "gone/out.safetensors"], "RW001"),
    "already there": (["weights", "convert", "ddp.pt", "ddp.safetensors"], "RW001"),
    "no such key": (["weights", "convert", "ddp.pt", "out.safetensors", "--key", "ema"], "RW001"),
    "no such prefix": (["weights", "convert", "ddp.pt", "out.safetensors", "--prefix", "zzz."], "RW735"),
    "no such dtype": (["weights", "convert", "ddp.pt", "out.safetensors", "--dtype", "float3"], "RW001"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_usage_is_a_finding_and_leaves_nothing(corpus: Path, folder: Path, capsys: pytest.CaptureFixture[str], case: str) -> None:
    argv, code = WRONG[case]
    (folder / "ddp.pt").symlink_to(corpus / "ddp.pt")
    (folder / "ddp.safetensors").write_text("mine")
    (folder / "bad_nets.py").write_text("import nowhere_to_be_found")
    before = sorted(path.name for path in folder.iterdir())

    assert main(argv) == 2

    assert capsys.readouterr().err.startswith(code)
    assert sorted(path.name for path in folder.iterdir() if path.name != "__pycache__") == before
    assert (folder / "ddp.safetensors").read_text() == "mine"


def test_a_full_disk_is_a_finding_and_keeps_what_was_there(corpus: Path, folder: Path) -> None:
    """A file-size limit stands for the full disk: the write fails in the middle, in the same place."""
    (folder / "out.safetensors").write_text("mine")
    code = "import sys; from rankwise.cli.main import main; sys.exit(main(sys.argv[1:]))"
    argv = ["weights", "convert", str(corpus / "expected.pt"), "out.safetensors", "--overwrite"]

    def limit() -> None:
        import signal

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500))

    done = subprocess.run([sys.executable, "-c", code, *argv], capture_output=True, text=True, timeout=60, preexec_fn=limit)

    assert done.returncode == 2
    assert done.stderr.startswith("RW741"), done.stderr
    assert (folder / "out.safetensors").read_text() == "mine"
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


def test_a_refused_checkpoint_shows_its_tensors_and_what_would_run(folder: Path, run_rankwise: Callable[..., Any]) -> None:
    torch.save({"model": Net().state_dict(), "when": os.stat(".")}, "objects.pt")

    ran = run_rankwise("weights", "inspect", "objects.pt")

    assert ran.code == 2
    assert "head.weight" in ran.stdout
    assert ran.stderr.startswith("RW731")
    assert "os.stat_result" in ran.stderr


MEASURE = """
import sys, torch
from torch import nn
from rankwise.weights.loading import load_weights
def anonymous():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("RssAnon")) // 1024
for device in ("meta", "cpu"):
    with torch.device(device):
        model = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(6)))
    before = anonymous()
    load_weights(model, sys.argv[1])
    total = float(sum(parameter.sum() for parameter in model.parameters()))
    print(anonymous() - before)
"""


@pytest.mark.live
def test_no_second_copy_of_the_weights_is_in_memory(tmp_path: Path) -> None:
    """100 MB of weights: a model on the meta device gets the tensors that were read, another has its own filled piece by piece."""
    shapes = {"weight": (2048, 2048), "bias": (2048,)}
    torch.save({f"module.{i}.{name}": torch.zeros(shape) for i in range(6) for name, shape in shapes.items()}, tmp_path / "big.pt")

    done = subprocess.run([sys.executable, "-c", MEASURE, str(tmp_path / "big.pt")], capture_output=True, text=True, timeout=100)

    assert done.returncode == 0, done.stderr
    on_meta_mb, on_cpu_mb = map(int, done.stdout.split())
    assert on_meta_mb < 130 and on_cpu_mb < 30
