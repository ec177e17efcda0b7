"""MODELS.toml: what it says, and what programs and example inputs say about models."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from rankwise.errors import RankwiseError, UnreadableInput  # noqa: E402
from rankwise.protocol import TensorSpec  # noqa: E402
from rankwise.serve.models_file import read_example, read_models, specs_of_example, specs_of_program  # noqa: E402

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
    "two models by one name": ('[models."a:1"]\nbuild = "a:b"\n[models.a]\nbuild = "a:c"\n[models.a.versions.1]\n', "would be two models"),
    "a split by another's name": ('[models.a]\nbuild = "a:b"\n[models."a:1"]\nsplit = { a = 1 }\n', "would be two models"),
    "two models by one version": ('[models.a.versions."1:2"]\nbuild = "a:b"\n[models."a:1".versions.2]\nbuild = "a:c"\n', "two models"),
    "a list of ways": (
        '[models.a]\nbuild = "a:b"\n[models.b]\nbuild = "a:b"\n[models.e]\nensemble = ["a", "b"]\ncombine = ["mean"]\n',
        "combine is ['mean']; it must be a text",
    ),
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
    "a split of nothing": ("[models.a]\nsplit = { x = 1 }", "there is none; a split"),
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


class Two(torch.nn.Module):  # type: ignore[misc,name-defined]
    def forward(self, x: Any, index: Any) -> dict[str, Any]:
        return {"doubled": x * 2, "next": index + 1}


class One(torch.nn.Module):  # type: ignore[misc,name-defined]
    def forward(self, x: Any) -> Any:
        return x.sum(1)


class Pair(torch.nn.Module):  # type: ignore[misc,name-defined]
    def forward(self, x: Any) -> tuple[Any, Any]:
        return x + 1, x > 0


class Named(torch.nn.Module):  # type: ignore[misc,name-defined]
    def forward(self, x: Any, *, k: Any) -> list[Any]:
        return [x + k, [x, k]]


def exported(path: Path, module: Any, *inputs: Any, rows: bool = False, **named: Any) -> Path:
    dynamic = {name: {0: torch.export.Dim("rows")} for name in ("x", "index")[: len(inputs)]} if rows else None
    torch.export.save(torch.export.export(module, inputs, named, dynamic_shapes=dynamic), path)
    return path


def test_names_types_and_shapes_of_a_program(tmp_path: Path) -> None:
    path = exported(tmp_path / "two.pt2", Two(), torch.zeros(2, 4), torch.zeros(2, 3, dtype=torch.int64), rows=True)
    assert specs_of_program(path) == (
        (TensorSpec("x", "FP32", (-1, 4)), TensorSpec("index", "INT64", (-1, 3))),
        (TensorSpec("doubled", "FP32", (-1, 4)), TensorSpec("next", "INT64", (-1, 3))),
    )
    path = exported(tmp_path / "one.pt2", One(), torch.zeros(2, 4, dtype=torch.bfloat16))
    assert specs_of_program(path) == ((TensorSpec("x", "BF16", (2, 4)),), (TensorSpec("output", "BF16", (2,)),))
    path = exported(tmp_path / "pair.pt2", Pair(), torch.zeros(2, 4, dtype=torch.float16))
    assert specs_of_program(path)[1] == (TensorSpec("output_0", "FP16", (2, 4)), TensorSpec("output_1", "BOOL", (2, 4)))


def test_what_the_protocol_has_no_words_for_is_left_open(tmp_path: Path) -> None:
    path = exported(tmp_path / "named.pt2", Named(), torch.zeros(2), k=torch.zeros(2))
    assert specs_of_program(path) == ((), ())
    path = exported(tmp_path / "complex.pt2", One(), torch.zeros(2, 4, dtype=torch.complex64))
    assert specs_of_program(path) == ((), ())


def test_files_that_are_no_program_say_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.pt2"
    assert specs_of_program(path) == ((), ())
    for content in (b"", b"PK", b"words"):
        path.write_bytes(content)
        assert specs_of_program(path) == ((), ())
    for said in ("", "[]", "{}", '{"schema_version": {"major": 99}}', '{"schema_version": {"major": 8}, "graph_module": 3}'):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("a/models/model.json", said)
        assert specs_of_program(path) == ((), ())


def test_a_later_schema_is_not_read_as_if_it_were_ours(tmp_path: Path) -> None:
    path = exported(tmp_path / "one.pt2", One(), torch.zeros(2, 4))
    with zipfile.ZipFile(path) as archive:
        name = next(name for name in archive.namelist() if name.endswith("models/model.json"))
        said = json.loads(archive.read(name))
    said["schema_version"]["major"] += 1
    with zipfile.ZipFile(tmp_path / "later.pt2", "w") as archive:
        archive.writestr(name, json.dumps(said))
    assert specs_of_program(path) != ((), ()) and specs_of_program(tmp_path / "later.pt2") == ((), ())


def test_a_checkpoint_is_no_example(tmp_path: Path) -> None:
    torch.save({"weight": torch.zeros(2)}, tmp_path / "last.pt")

    with pytest.raises(UnreadableInput, match="not an array"):
        read_example(tmp_path / "last.pt")


def test_an_example_has_names_types_and_shapes(tmp_path: Path) -> None:
    np.savez(tmp_path / "e.npz", image=np.zeros((1, 3, 8, 8), np.uint8), mask=np.zeros((1, 8), bool))
    example = read_example(tmp_path / "e.npz")
    specs = specs_of_example(tuple(example.values()), 8, example)

    assert specs == (TensorSpec("image", "UINT8", (-1, 3, 8, 8)), TensorSpec("mask", "BOOL", (-1, 8)))
    assert specs_of_example(torch.zeros(1, 4), 1) == (TensorSpec("input_0", "FP32", (1, 4)),)
    assert specs_of_example((torch.zeros(1, dtype=torch.bfloat16), torch.zeros(2, dtype=torch.int32)), 1) == (
        TensorSpec("input_0", "BF16", (1,)),
        TensorSpec("input_1", "INT32", (2,)),
    )
    assert specs_of_example({"a": 1}, 1) == specs_of_example(torch.zeros(1, dtype=torch.complex64), 1) == ()


def test_an_example_that_cannot_be_read_is_a_finding_and_nothing_in_it_is_run(tmp_path: Path) -> None:
    np.save(tmp_path / "pickled.npy", np.array([{"a": 1}], object), allow_pickle=True)
    (tmp_path / "words.npz").write_text("words")
    for name in ("pickled.npy", "words.npz", "nowhere.npy"):
        with pytest.raises(UnreadableInput) as caught:
            read_example(tmp_path / name)
        assert name in str(caught.value)
