"""Bad checkpoints: each is a finding; nothing in them runs, and none of them costs memory or time."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest
import torch

import rankwise
from rankwise.weights.converting import convert_to_safetensors
from rankwise.weights.tensor_records import CheckpointError
from tests.weights.bad_files import marker, tensor_pickle, write_bad, zip_with
from tests.weights.nets import Net
from tests.weights.test_corpus import assert_same, expected

pytestmark = pytest.mark.timeout(600)  # the first test waits for a process that tries all files

TRIER = Path(__file__).with_name("try_bad_files.py")
MOST_MB = 60
MOST_S = 10


@pytest.fixture(scope="module")
def tried(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What each bad file came to in a process of its own that may take half a gigabyte, and the codes that are right."""
    folder = tmp_path_factory.mktemp("bad")
    wanted = write_bad(folder, corpus)
    paths = "\n".join(str(folder / name) for name in wanted)
    done = subprocess.run([sys.executable, str(TRIER), str(corpus / "ddp.pt")], input=paths, text=True, capture_output=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    results = {Path(result["path"]).name: result for result in map(json.loads, done.stdout.splitlines())}
    assert results.keys() == wanted.keys()
    return {"folder": folder, "wanted": wanted, "results": results}


def test_each_is_a_finding_of_the_right_cause(tried: dict[str, Any]) -> None:
    wrong = {name: result["came_to"] for name, result in tried["results"].items() if result["came_to"] not in tried["wanted"][name]}

    assert not wrong
    assert len(tried["results"]) > 90


def test_nothing_in_them_was_executed(tried: dict[str, Any]) -> None:
    assert not Path(marker(tried["folder"])).exists()


def test_none_takes_memory_or_time(tried: dict[str, Any]) -> None:
    costly = {name: result for name, result in tried["results"].items() if result["mb"] > MOST_MB or result["s"] > MOST_S}

    assert not costly


def test_a_bomb_would_have_gone_off(tried: dict[str, Any]) -> None:
    """The same file, unpickled as others do: the corpus is not harmless by accident."""
    code = "import pickle, sys, zipfile; pickle.loads(zipfile.ZipFile(sys.argv[1]).read('x/data.pkl'))"
    subprocess.run([sys.executable, "-c", code, str(tried["folder"] / "bomb_system.pt")], capture_output=True, timeout=60)

    assert Path(marker(tried["folder"])).exists()
    Path(marker(tried["folder"])).unlink()


def test_the_finding_says_what_would_have_run(tried: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError) as caught:
        rankwise.load_weights(Net(), tried["folder"] / "bomb_system.pt")

    finding = caught.value.finding
    assert finding.code == "RW731"
    assert f"posix.system('touch {marker(tried['folder'])}')" in finding.why


def test_a_whole_model_is_refused_by_its_classes(tmp_path: Path) -> None:
    torch.save(Net(), tmp_path / "whole.pt")

    with pytest.raises(CheckpointError) as caught:
        rankwise.load_weights(Net(), tmp_path / "whole.pt")

    assert caught.value.finding.code == "RW731"
    assert "tests.weights.nets.Net" in caught.value.finding.why


@pytest.mark.parametrize("legacy", [False, True])
def test_a_whole_models_tensors_can_be_read_without_building_it(tmp_path: Path, legacy: bool) -> None:
    saved = Net()
    torch.save(saved, tmp_path / "whole.pt", _use_new_zipfile_serialization=not legacy)
    model = Net()

    with pytest.raises(CheckpointError) as caught:
        rankwise.load_weights(model, tmp_path / "whole.pt")
    rankwise.load_weights(model, tmp_path / "whole.pt", tensors_only=True)

    assert "tensors_only" in caught.value.finding.next[0]
    assert_same(model, saved.state_dict())


@pytest.mark.live
def test_modules_that_hold_each_other_again_and_again_are_damage(tmp_path: Path) -> None:
    net: torch.nn.Module = torch.nn.Linear(1, 1)
    for _ in range(40):
        net = torch.nn.Sequential(net, net)
    torch.save(net, tmp_path / "laughs.pt")

    with pytest.raises(CheckpointError) as caught:
        rankwise.load_weights(Net(), tmp_path / "laughs.pt", tensors_only=True)

    assert caught.value.finding.code == "RW732"


def test_a_traceback_shows_why_and_what_next(tmp_path: Path, corpus: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        rankwise.load_weights(torch.nn.Linear(2, 2), corpus / "expected.pt")

    text = str(caught.value)
    assert text.startswith("RW734 ") and "\nwhy    model" in text and text.endswith("next   rankwise explain RW734")
    shown = "".join(traceback.format_exception(caught.value))
    assert shown.count("why    model") == 1
    assert "does not fit the model" in shown and "\nwhy    model" in shown
    assert shown.rstrip().endswith("next   rankwise explain RW734")


def test_tensors_beside_objects_can_be_read_without_building_these(tmp_path: Path, corpus: Path) -> None:
    import argparse

    import numpy

    saved = {"model": expected(corpus), "args": argparse.Namespace(lr=0.1), "best": numpy.float64(0.5)}
    torch.save(saved, tmp_path / "objects.pt")
    model = Net()
    with pytest.raises(CheckpointError) as caught:
        rankwise.load_weights(model, tmp_path / "objects.pt")

    rankwise.load_weights(model, tmp_path / "objects.pt", tensors_only=True)

    assert "argparse.Namespace" in caught.value.finding.why
    assert "tensors_only" in " ".join(caught.value.finding.next)
    assert_same(model, expected(corpus))


@pytest.mark.parametrize("name", ["expected.pt", "training.pt", "dcp_fsdp2_bare", "program.pt2", "ours.safetensors"])
def test_a_flipped_bit_is_found_or_does_no_harm(corpus: Path, tmp_path: Path, name: str) -> None:
    """Anywhere in the file: either a finding, or the weights are still the very same."""
    source = corpus / name
    if name == "ours.safetensors":
        convert_to_safetensors(corpus / "expected.pt", source := tmp_path / name)
    files = [path for path in sorted(source.iterdir()) if path.is_file()] if source.is_dir() else [source]
    wanted = expected(corpus)
    draw = random.Random(name)
    found = 0
    for _ in range(60):
        folder = tmp_path / "flipped"
        folder.mkdir(exist_ok=True)
        for path in files:
            (folder / path.name).write_bytes(path.read_bytes())
        victim = folder / draw.choice(files).name
        content = bytearray(victim.read_bytes())
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        victim.write_bytes(content)
        model = Net()
        before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
        try:
            rankwise.load_weights(model, folder if source.is_dir() else victim)
        except rankwise.RankwiseError as error:
            found += 1
            assert error.finding.code in {"RW731", "RW732", "RW733", "RW734", "RW735", "RW736", "RW740"}
            assert_same(model, before)
        else:
            assert_same(model, wanted)
    assert found > 4


def test_an_expanded_tensor_is_not_written_out_in_full(tmp_path: Path) -> None:
    zip_with(tmp_path / "expanded.pt", tensor_pickle((2_500_000_000, 4), (0, 1), 4), {"0": b"\0" * 16})

    with pytest.raises(CheckpointError) as caught:
        convert_to_safetensors(tmp_path / "expanded.pt", tmp_path / "out.safetensors")

    assert caught.value.finding.code == "RW732"
    assert [path.name for path in tmp_path.iterdir()] == ["expanded.pt"]
