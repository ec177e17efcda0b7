"""Folders with several files: the one that is meant is taken, or none."""

from __future__ import annotations

import json
import os
import pickle
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest

torch = pytest.importorskip("torch")
save_file = pytest.importorskip("safetensors.torch").save_file

import rankwise  # noqa: E402
from rankwise.errors import UnreadableInput  # noqa: E402
from rankwise.weights.tensor_records import CheckpointError  # noqa: E402


def values(number: float) -> dict[str, torch.Tensor]:
    return {"weight": torch.full((2, 3), float(number)), "bias": torch.full((2,), float(number))}


def loaded(folder: Path, **options: str) -> float:
    model = torch.nn.Linear(3, 2)
    rankwise.load_weights(model, folder, **options)
    assert len(set(model.weight.flatten().tolist() + model.bias.tolist())) == 1
    return float(model.bias.detach()[0])


def refused(folder: Path, code: str) -> str:
    with pytest.raises(CheckpointError) as raised:
        loaded(folder)
    assert raised.value.finding.code == code
    return str(raised.value)


def test_a_whole_file_beside_an_index_is_not_passed_over(tmp_path: Path) -> None:
    save_file(values(1), tmp_path / "model.safetensors")
    save_file(values(2), tmp_path / "part.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": dict.fromkeys(values(2), "part.safetensors")}))

    assert "model.safetensors, model.safetensors.index.json" in refused(tmp_path, "RW733")
    assert loaded(tmp_path / "model.safetensors") == 1
    assert loaded(tmp_path / "model.safetensors.index.json") == 2


@pytest.mark.parametrize(
    ("content", "said"), [(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "git lfs pull"), (b"", "an empty file")]
)
def test_a_part_that_is_not_there_yet_is_told_as_any_file_is(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "part.safetensors").write_bytes(content)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": dict.fromkeys(values(2), "part.safetensors")}))

    assert said in refused(tmp_path, "RW733")


@pytest.mark.parametrize(
    "page", [b"\n\n<!DOCTYPE html>", b"<!doctype html><html>", b"<HTML><head>", b"\xef\xbb\xbf<html>", b"<?xml version='1.0'?>"]
)
def test_a_page_saved_in_place_of_the_file_is_told(tmp_path: Path, page: bytes) -> None:
    (tmp_path / "last.pt").write_bytes(page + b"<title>404</title>" * 20)

    assert "download the file itself" in refused(tmp_path / "last.pt", "RW733")


@pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
def test_numpys_archive_is_told_as_such(tmp_path: Path, write: Any) -> None:
    write(tmp_path / "w.npz", a=np.zeros(100), b=np.zeros(100))

    assert "numpy.load reads it" in refused(tmp_path / "w.npz", "RW733")


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_an_archive_around_a_checkpoint_is_not_a_damaged_one(tmp_path: Path, method: int) -> None:
    with zipfile.ZipFile(tmp_path / "last.zip", "w", method) as archive:
        archive.writestr("run/last.pt", b"0" * 1000)

    assert "without data.pkl; it has" in refused(tmp_path / "last.zip", "RW733")


def test_a_checkpoint_that_was_packed_again_is_not_a_damaged_one(tmp_path: Path) -> None:
    """torch.load reads it, so the finding says how to get out."""
    torch.save(values(100), tmp_path / "last.pt")
    with zipfile.ZipFile(tmp_path / "last.pt") as whole, zipfile.ZipFile(tmp_path / "again.pt", "w", zipfile.ZIP_DEFLATED) as again:
        for name in whole.namelist():
            again.writestr(name, whole.read(name))

    said = refused(tmp_path / "again.pt", "RW733")

    assert "packed again" in said and "unzip -d unpacked again.pt" in said


def test_a_file_of_joblib_is_not_a_damaged_pickle(tmp_path: Path) -> None:
    joblib.dump({name: tensor.numpy() for name, tensor in values(3).items()}, tmp_path / "last.joblib")

    assert "a file of joblib.dump" in refused(tmp_path / "last.joblib", "RW733")


def test_a_part_may_be_of_any_format_but_no_index(tmp_path: Path) -> None:
    index = tmp_path / "model.safetensors.index.json"
    torch.save(values(3), tmp_path / "old.bin", _use_new_zipfile_serialization=False)
    index.write_text(json.dumps({"weight_map": dict.fromkeys(values(3), "old.bin")}))
    assert loaded(tmp_path) == 3

    index.write_text(json.dumps({"weight_map": dict.fromkeys(values(3), index.name)}))
    assert "named as a part" in refused(tmp_path, "RW732")


def test_a_name_that_is_not_utf8_is_a_name_like_others(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"Bj\xf6rn")
    folder.mkdir()
    torch.save(values(4), folder / "last.pt")

    assert loaded(folder) == 4


@pytest.mark.parametrize("name", ["model{}.safetensors", "pytorch_model{}.bin"])
def test_two_models_of_one_accelerate_folder_are_not_chosen_between(tmp_path: Path, name: str) -> None:
    save = save_file if name.endswith(".safetensors") else torch.save
    save(values(1), tmp_path / name.format(""))
    save(values(2), tmp_path / name.format("_1"))

    assert name.split("{")[0] + "_1" in refused(tmp_path, "RW735")
    assert loaded(tmp_path, key=name.split("{")[0] + "_1") == 2


def test_a_model_with_an_adapter_beside_it_is_not_taken_for_both(tmp_path: Path) -> None:
    save_file(values(1), tmp_path / "model.safetensors")
    save_file({"base_model.model.lora_A.weight": torch.zeros(1, 3)}, tmp_path / "adapter_model.safetensors")

    assert "an adapter that changes it, adapter_model.safetensors" in refused(tmp_path, "RW733")
    assert loaded(tmp_path / "model.safetensors") == 1


def test_of_two_models_the_only_one_that_fits_is_taken(tmp_path: Path) -> None:
    save_file(values(1), tmp_path / "model.safetensors")
    save_file({"other": torch.zeros(5)}, tmp_path / "model_1.safetensors")

    assert loaded(tmp_path) == 1


def test_files_of_different_suffixes_are_not_chosen_between(tmp_path: Path) -> None:
    torch.save(values(1), tmp_path / "best.pt")
    torch.save(values(2), tmp_path / "last.ckpt")

    assert "best.pt, last.ckpt" in refused(tmp_path, "RW733")


def test_one_file_in_two_formats_beside_an_optimizer_is_one(tmp_path: Path) -> None:
    save_file(values(1), tmp_path / "net.safetensors")
    torch.save(values(1), tmp_path / "net.bin")
    torch.save({"state": {}, "param_groups": []}, tmp_path / "optimizer.pt")

    assert loaded(tmp_path) == 1


def test_a_file_that_may_not_even_be_looked_at_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.save(values(1), tmp_path / "last.pt")
    (tmp_path / "locked.pt").touch()
    see = os.stat

    def stat(path: Any, **options: Any) -> os.stat_result:
        if str(path).endswith("locked.pt"):
            raise PermissionError(13, "Permission denied", str(path))
        return see(path, **options)

    monkeypatch.setattr(os, "stat", stat)

    with pytest.raises(rankwise.RankwiseError, match=r"locked\.pt cannot be read"):
        loaded(tmp_path)


@pytest.mark.parametrize("variant", ["", "fp16."])
def test_an_index_may_have_a_variant_in_its_name(tmp_path: Path, variant: str) -> None:
    for name, value in values(2).items():
        save_file({name: value}, tmp_path / f"model.{variant}{name}.safetensors")
    index = tmp_path / f"unet.safetensors.index.{variant}json"
    index.write_text(json.dumps({"weight_map": {name: f"model.{variant}{name}.safetensors" for name in values(2)}}))

    assert loaded(tmp_path) == loaded(index) == 2


def test_an_empty_path_is_not_the_folder_this_runs_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.save(values(1), tmp_path / "last.pt")
    monkeypatch.chdir(tmp_path)

    with pytest.raises(UnreadableInput, match="the path is empty"):
        rankwise.load_weights(torch.nn.Linear(3, 2), "")


def test_a_tar_archive_is_told_as_one(tmp_path: Path) -> None:
    """NeMo's `.nemo` is one."""
    torch.save(values(1), tmp_path / "model_weights.ckpt")
    with tarfile.open(tmp_path / "net.nemo", "w") as archive:
        archive.add(tmp_path / "model_weights.ckpt", "./model_weights.ckpt")

    assert "tar -xf net.nemo" in refused(tmp_path / "net.nemo", "RW733")


def test_a_checkpoint_inside_of_another_programs_archive_is_named(tmp_path: Path) -> None:
    """As Stable-Baselines3 writes them."""
    torch.save(values(1), tmp_path / "policy.pth")
    with zipfile.ZipFile(tmp_path / "agent.zip", "w") as archive:
        archive.writestr("data", "{}")
        archive.write(tmp_path / "policy.pth", "policy.pth")

    assert "unzip agent.zip policy.pth" in refused(tmp_path / "agent.zip", "RW733")
    with zipfile.ZipFile(tmp_path / "agent.zip", "a") as archive:
        archive.writestr("pytorch_variables.pth", "")
    assert "policy.pth pytorch_variables.pth, then give the one with the weights" in refused(tmp_path / "agent.zip", "RW733")


def test_a_state_dict_that_was_pickled_without_torch_says_how_to_save_it_again(tmp_path: Path) -> None:
    (tmp_path / "last.pkl").write_bytes(pickle.dumps(values(1)))

    assert "pickle.load reads it, torch.save writes its tensors" in refused(tmp_path / "last.pkl", "RW731")


def test_links_without_what_they_point_to_are_told(tmp_path: Path) -> None:
    """A snapshot of HuggingFace's cache that was copied without its blobs."""
    (tmp_path / "model.safetensors").symlink_to("../../blobs/abc")

    assert "model.safetensors is a link to ../../blobs/abc" in refused(tmp_path, "RW733")
    with pytest.raises(UnreadableInput, match=r"a link to \.\./\.\./blobs/abc"):
        loaded(tmp_path / "model.safetensors")


def test_accelerates_whole_model_of_fsdp_is_the_one_beside_its_sampler(tmp_path: Path) -> None:
    for name in ("pytorch_model_fsdp", "optimizer", "sampler", "training_args"):
        torch.save(values(1) if name.startswith("pytorch") else {"epoch": 1}, tmp_path / f"{name}.bin")

    assert loaded(tmp_path) == 1


@pytest.mark.parametrize("names", [("model", "pytorch_model"), ("diffusion_pytorch_model", "diffusion_pytorch_model"), ("net", "net")])
def test_an_older_model_that_was_left_in_another_format_is_not_taken_for_the_new_one(tmp_path: Path, names: tuple[str, str]) -> None:
    save_file(values(1), tmp_path / f"{names[0]}.safetensors")
    torch.save(values(1), tmp_path / f"{names[1]}.bin")
    assert loaded(tmp_path) == 1

    torch.save(values(2), tmp_path / f"{names[1]}.bin")
    assert "two models of the same names and other numbers" in refused(tmp_path, "RW733")

    torch.save({name: value.half() for name, value in values(2).items()}, tmp_path / f"{names[1]}.bin")
    assert loaded(tmp_path) == 1
    (tmp_path / f"{names[1]}.bin").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    assert loaded(tmp_path) == 1


def test_a_save_over_parts_with_an_index_that_was_cut_off_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    parts = {name: f"model-0000{number}-of-00002.safetensors" for number, name in enumerate(values(1), 1)}
    for name, part in parts.items():
        save_file({name: values(1)[name]}, tmp_path / part)
        os.utime(tmp_path / part, (1.7e9, 1.7e9))
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": parts}))
    os.utime(index, (1.7e9 + 1, 1.7e9 + 1))
    assert loaded(tmp_path) == 1 and not caplog.text

    os.utime(tmp_path / parts["weight"], (1.7e9 + 3600, 1.7e9 + 3600))
    loaded(tmp_path)

    assert "was a save over an older one cut off?" in caplog.text


@pytest.mark.parametrize("numbers", [[1], [1, 2]])
def test_parts_without_their_index_are_told_as_that(tmp_path: Path, numbers: list[int]) -> None:
    for number in numbers:
        save_file(values(number), tmp_path / f"model-0000{number}-of-00002.safetensors")

    assert "copy model.safetensors.index.json too" in refused(tmp_path, "RW733")


def test_a_folder_may_hold_an_archive_by_its_old_name(tmp_path: Path) -> None:
    torch.save({"epoch": 3, "state_dict": values(1)}, tmp_path / "model_best.pth.tar")

    assert loaded(tmp_path) == 1


def test_what_is_kept_beside_the_files_of_all_ranks_is_no_checkpoint(tmp_path: Path) -> None:
    torch.save(values(1), tmp_path / "model_world_size_1_rank_0.pt")
    torch.save({"lr_scheduler": {"last_epoch": 3}, "rng": torch.get_rng_state()}, tmp_path / "extra_state_world_size_1_rank_0.pt")

    assert loaded(tmp_path) == 1


def test_a_download_that_has_not_ended_is_told_though_it_has_its_full_size(tmp_path: Path) -> None:
    save_file(values(0), tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors.aria2").touch()

    assert "a download that has not ended" in refused(tmp_path / "model.safetensors", "RW733")


def test_notes_beside_a_model_are_not_what_the_folder_is_judged_by(tmp_path: Path) -> None:
    (tmp_path / "brain.ckpt").write_text("step: 3\n")
    torch.save(values(1), tmp_path / "model.ckpt")

    assert "2 checkpoints: brain.ckpt, model.ckpt" in refused(tmp_path, "RW733")
