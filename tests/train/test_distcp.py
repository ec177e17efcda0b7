"""Folders of `torch.distributed.checkpoint` that somebody has changed: nothing in them is run."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

from rankwise.train.distcp import METADATA, Refused, asked_for, read_metadata
from tests.train.farm import Farm

JOBS = "tests.train.jobs_checkpoints"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    dcp.save({"w": torch.ones(2), "step": 3}, checkpoint_id=tmp_path, no_dist=True)
    return tmp_path


def change(folder: Path, how: Any) -> None:
    metadata = pickle.loads((folder / METADATA).read_bytes())
    how(metadata)
    (folder / METADATA).write_bytes(pickle.dumps(metadata))


def test_what_torch_writes_is_read(folder: Path) -> None:
    metadata = read_metadata(folder)

    assert set(metadata.state_dict_metadata) == {"w", "step"}
    assert metadata.state_dict_metadata["w"].size == torch.Size([2])  # type: ignore[union-attr]


class Calls:
    """Pickled, it is a call."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize(
    ("thing", "said"),
    [
        (lambda path: Calls(os.system, f"touch {path}"), "posix.system('touch "),
        (lambda path: Calls(open, str(path), "w"), "io.open('"),
        (lambda path: Calls(eval, "1 + 1"), "builtins.eval('1 + 1')"),
        (lambda path: os.system, "import posix.system"),
        (lambda path: Calls(os.system, "x" * 1000), "posix.system('xxx"),
    ],
)
def test_what_would_run_is_refused_with_its_words_and_not_run(folder: Path, thing: Any, said: str) -> None:
    change(folder, lambda metadata: setattr(metadata, "planner_data", thing(folder / "exploded")))

    with pytest.raises(Refused) as refused:
        read_metadata(folder)

    assert str(refused.value).startswith(said) and len(str(refused.value)) <= 160
    assert not (folder / "exploded").exists()


@pytest.mark.parametrize("name", ["../other", "/etc/passwd", "a/b"])
def test_files_elsewhere_are_not_read(folder: Path, name: str) -> None:
    def move(metadata: Any) -> None:
        for info in metadata.storage_data.values():
            info.relative_path = name

    change(folder, move)
    if not name:
        return

    with pytest.raises(ValueError, match="which is not a file beside it"):
        read_metadata(folder)


@pytest.mark.parametrize("data", [b"", b"x", pickle.dumps({"no": "metadata"}), pickle.dumps(None)])
def test_what_is_no_metadata_is_damage(folder: Path, data: bytes) -> None:
    (folder / METADATA).write_bytes(data)

    with pytest.raises(ValueError, match=r"is not what torch.distributed.checkpoint writes"):
        read_metadata(folder)


def test_metadata_without_what_is_asked_of_it_is_damage(folder: Path) -> None:
    change(folder, lambda metadata: setattr(metadata, "state_dict_metadata", None))

    with pytest.raises(ValueError, match="is not what"):
        read_metadata(folder)


def test_what_torch_would_not_load_is_named_without_its_advice(tmp_path: Path) -> None:
    torch.save({"w": Calls(os.system, "true")}, tmp_path / "state.pt")

    with pytest.raises(pickle.UnpicklingError) as error:
        torch.load(tmp_path / "state.pt", weights_only=True)

    assert asked_for(error.value) == "posix.system"
    assert asked_for(pickle.UnpicklingError("something else")).startswith("more than torch.load")


@pytest.mark.parametrize(
    ("where", "code", "said"),
    [
        ("metadata", "RW731", "posix.system('touch "),
        ("inside", "RW731", "posix.system('touch "),
        ("value", "RW731", "posix.system, for optimizer.param_groups."),
        ("state", "RW731", "posix.system"),
        ("elsewhere", "RW708", "../../other"),
        ("cut", "RW708", ".metadata"),
    ],
)
def test_a_tampered_checkpoint_runs_nothing_and_is_refused(farm: Farm, tmp_path: Path, where: str, code: str, said: str) -> None:
    farm.run("trained", 2, jobs=JOBS, folder=tmp_path, stop_at=4, sharded=True)
    farm.alone("tamper", jobs=JOBS, folder=tmp_path / "step-00000004", where=where, exploded=tmp_path / "exploded")

    outcomes = farm.ranks("trained", 2, jobs=JOBS, folder=tmp_path, sharded=True)

    assert [outcome.code for outcome in outcomes] == [code, code], outcomes
    assert said in outcomes[0].whole
    assert not (tmp_path / "exploded").exists()
