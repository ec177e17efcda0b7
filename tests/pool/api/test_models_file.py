"""MODELS.toml: what it says becomes models; what is wrong with it is a finding that names the place."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rankwise.errors import RankwiseError
from rankwise.pool.api.model import TensorSpec
from rankwise.pool.api.models_file import read_models

WHOLE = """
[pool]
workers = 2

[models.mlp]
build = "my_models:build_mlp"
weights = "last.pt"
inputs  = [{ name = "x", datatype = "FP32", shape = [-1, 784] }]
outputs = [{ name = "y", datatype = "FP32", shape = [-1, 10] }]
replicas = 1
device = "cpu"
max_batch = 32
max_delay_ms = 2

[models.cnn]
build = "my_models:build_cnn"
preload = false

[models.cnn.versions.1]
args = [1]

[models.cnn.versions.2]
args = [2]
max_batch = 4
"""

X = '{ name = "x", datatype = "FP32", shape = [1] }'
# what is written, and what of it the finding has to name
WRONG = {
    "not TOML": ("[models.mlp\nbuild = 1", "line 1"),
    "a value missing": ('[models.mlp]\nbuild = "a:b"\nweights = \n', "line 3"),
    "no models": ("[pool]\nworkers = 1", "names no models"),
    "unknown table": ("[model.mlp]", "'models'"),
    "unknown key": ('[models.mlp]\nbuild = "a:b"\nmax_bach = 3', "'max_batch'"),
    "neither build nor program": ("[models.mlp]\nmax_batch = 3", "build or program"),
    "both": ('[models.mlp]\nbuild = "a:b"\nprogram = "a.pt2"', "build or program"),
    "a build that is none": ('[models.mlp]\nbuild = "nonsense"', "'nonsense'"),
    "a program that is none": ('[models.mlp]\nprogram = "model.onnx"', "'model.onnx'"),
    "a program that is not there": ('[models.mlp]\nprogram = "gone.pt2"', "gone.pt2"),
    "weights that are not there": ('[models.mlp]\nbuild = "a:b"\nweights = "gone.pt"', "gone.pt"),
    "a model that is no table": ("[models]\nmlp = 3", "models.mlp"),
    "a text where a number belongs": ('[models.mlp]\nbuild = "a:b"\nmax_batch = "3"', "max_batch"),
    "a number where a text belongs": ("[models.mlp]\nbuild = 3", "build is 3"),
    "no datatype": ('[models.mlp]\nbuild = "a:b"\ninputs = [{ name = "x", shape = [1] }]', "inputs[0]"),
    "another datatype": ('[models.mlp]\nbuild = "a:b"\ninputs = [{ name = "x", datatype = "float", shape = [1] }]', "'float'"),
    "a shape below -1": ('[models.mlp]\nbuild = "a:b"\ninputs = [{ name = "x", datatype = "FP32", shape = [-2] }]', "[-2]"),
    "the same input twice": (f'[models.mlp]\nbuild = "a:b"\ninputs = [{X}, {X}]', "two inputs"),
    "a pool argument that is none": ('[pool]\nworker = 1\n[models.mlp]\nbuild = "a:b"', "'workers'"),
    "a name that is none": ('[models.""]\nbuild = "a:b"', "cannot be a name"),
}  # fmt: skip


def written(folder: Path, text: str) -> Path:
    (folder / "last.pt").write_bytes(b"")
    path = folder / "MODELS.toml"
    path.write_text(text)
    return path


def test_what_it_says_becomes_models(tmp_path: Path) -> None:
    file = read_models(written(tmp_path, WHOLE))

    mlp, first, second = file.entries
    assert list(file.models) == ["mlp", "cnn:1", "cnn:2"] and file.pool == {"workers": 2}
    assert (mlp.name, mlp.version, mlp.key, mlp.preload) == ("mlp", "1", "mlp", True)
    assert mlp.inputs == (TensorSpec("x", "FP32", (-1, 784)),) and mlp.outputs == (TensorSpec("y", "FP32", (-1, 10)),)
    assert (mlp.model.replicas, mlp.model.device, mlp.model.max_batch, mlp.model.max_delay_ms) == (1, "cpu", 32, 2)
    assert (first.name, first.version, first.model.args, first.model.max_batch, first.preload) == ("cnn", "1", (1,), 1, False)
    assert (second.name, second.version, second.model.args, second.model.max_batch) == ("cnn", "2", (2,), 4)


def test_files_are_found_from_the_folder_it_stands_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, WHOLE)
    monkeypatch.chdir("/")

    assert read_models(path).models["mlp"].weights == str(tmp_path / "last.pt")


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_a_finding_that_names_it(case: str, tmp_path: Path) -> None:
    text, named = WRONG[case]

    with pytest.raises(RankwiseError) as caught:
        read_models(written(tmp_path, text))

    finding = caught.value.finding
    assert finding.code in ("RW001", "RW002")
    assert named in str(caught.value)


@pytest.mark.parametrize("data", [b"\xff\xfe", b"\x00", b"a" * 200_000 + b"=", b"a = " + b"[" * 100_000])
def test_whatever_the_bytes_it_is_a_finding(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "MODELS.toml"
    path.write_bytes(data)

    with pytest.raises(RankwiseError) as caught:
        read_models(path)

    assert caught.value.finding.code == "RW002"


@pytest.mark.parametrize("name", ["gone.toml", "."])
def test_a_file_that_cannot_be_read_is_told(name: str, tmp_path: Path) -> None:
    with pytest.raises(RankwiseError, match="cannot be read"):
        read_models(tmp_path / name)


def test_an_example_says_what_a_model_takes_and_warms_it_up(tmp_path: Path) -> None:
    np.savez(tmp_path / "e.npz", a=np.zeros((1, 4), np.float32), b=np.zeros((1, 2), np.int64))
    (tmp_path / "M.toml").write_text('[models.m]\nbuild = "a:b"\nexample = "e.npz"\nmax_batch = 4\n')

    entry = read_models(tmp_path / "M.toml").entries[0]

    assert entry.inputs == (TensorSpec("a", "FP32", (-1, 4)), TensorSpec("b", "INT64", (-1, 2)))
    assert [array.shape for array in entry.model.warmup] == [(1, 4), (1, 2)]
