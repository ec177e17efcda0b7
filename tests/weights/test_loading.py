"""Loading: wrong arguments are told before anything is read, and the report says what was done."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import rankwise
from rankwise.errors import UsageError
from rankwise.weights.loading import verify_checkpoint
from rankwise.weights.tensor_records import CheckpointError
from tests.weights.checkpoints import save
from tests.weights.nets import Net


@pytest.mark.parametrize(
    ("model", "options", "said"),
    [("last.pt", {}, "is a str"), (Net(), {"dtype": "float3"}, "'float3'"), (Net(), {"device": "gpu"}, "'gpu'")],
)
def test_wrong_arguments_are_told_before_the_file_is_looked_at(model: object, options: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        rankwise.load_weights(model, "nowhere.pt", **options)


def test_weights_that_are_loaded_already_are_no_checkpoint() -> None:
    with pytest.raises(UsageError, match="where a path is wanted"):
        rankwise.load_weights(Net(), Net().state_dict())


def test_a_text_where_patterns_are_wanted_is_wrong_usage(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        rankwise.load_weights(Net(), save(tmp_path / "last.pt", Net().state_dict()), allow_missing="head.*")


def test_the_report_says_what_was_done_to_make_it_fit(tmp_path: Path) -> None:
    state = {f"module.{name}": value.half() for name, value in nn.Linear(2, 2).state_dict().items()}
    path = save(tmp_path / "last.pt", {"model": state | {"module.extra": torch.zeros(3)}})

    report = rankwise.load_weights(nn.Linear(2, 2), path, allow_unexpected=["extra"])

    assert (report.path, report.key, report.loaded, report.nbytes) == (str(path), "model", 2, 12)
    assert report.removed_prefixes == ("module.",)
    assert report.ignored == ("extra",)
    assert report.left_alone == () and report.also_found == ()
    assert report.converted == dict.fromkeys(("weight", "bias"), "float16 → float32")


def test_what_tied_names_share_is_counted_once(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))

    report = rankwise.load_weights(model, save(tmp_path / "last.pt", model.state_dict()))

    assert (report.loaded, report.nbytes, report.removed_prefixes, report.converted) == (2, 32, (), {})


@pytest.mark.parametrize("wanted", ["bfloat16", torch.bfloat16])
def test_a_dtype_by_its_name_or_itself(tmp_path: Path, wanted: torch.dtype | str) -> None:
    model = nn.Linear(2, 2)

    rankwise.load_weights(model, save(tmp_path / "last.pt", nn.Linear(2, 2).state_dict()), dtype=wanted)

    assert model.weight.dtype == torch.bfloat16


def test_all_bytes_with_a_checksum_are_compared(tmp_path: Path) -> None:
    path = save(tmp_path / "last.pt", {"model": nn.Linear(4, 4).state_dict(), "ema": nn.Linear(4, 4).state_dict()})
    checked = verify_checkpoint(path)
    content = bytearray(path.read_bytes())
    value = nn.Linear(4, 4).weight.detach()
    at = bytes(content).index(torch.load(path)["ema"]["weight"].numpy().tobytes())
    content[at] ^= 1
    path.write_bytes(content)

    assert checked == 2 * 4 * (value.numel() + 4)
    with pytest.raises(CheckpointError) as caught:
        verify_checkpoint(path)
    assert caught.value.finding.code == "RW732"


def test_what_has_no_checksum_is_not_counted(tmp_path: Path) -> None:
    torch.save(nn.Linear(4, 4).state_dict(), tmp_path / "old.pt", _use_new_zipfile_serialization=False)

    assert verify_checkpoint(tmp_path / "old.pt") == 0
