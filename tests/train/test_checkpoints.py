"""Checkpoints: a training goes on as if nothing had happened, and a crash at any moment leaves the last good one."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
import threading
import time
from collections import namedtuple
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from torch import nn

from rankwise import train
from rankwise.errors import TrainError, UsageError
from rankwise.train import committed, group
from tests.families import mostly_live
from tests.train.farm import Farm
from tests.train.jobs import Stream, flat, regression_data, small_model
from tests.weights.nets import Turned

JOBS = "tests.train.jobs_checkpoints"


@pytest.mark.parametrize(
    "options",
    mostly_live(
        [{}, {"dropout": 0.3}, {"zero": True}, {"asynchronous": True, "dropout": 0.3}, {"sharded": True}, {"precision": "fp16"}], 2
    ),
    ids=lambda options: "-".join(options) or "plain",
)
def test_a_resumed_training_ends_exactly_where_an_undisturbed_one_does(farm: Farm, tmp_path: Path, options: dict[str, Any]) -> None:
    training = {name: value for name, value in options.items() if name in ("dropout", "zero", "precision")}
    undisturbed = farm.run("trained", 2, jobs=JOBS, **training)
    farm.run("trained", 2, jobs=JOBS, folder=tmp_path, stop_at=10, **options)

    resumed = farm.run("trained", 2, jobs=JOBS, folder=tmp_path, **options)

    for rank, other in zip(resumed, undisturbed):
        assert rank["resumed"] == 8
        assert {**rank, "resumed": 0} == other


@pytest.mark.live
def test_a_training_killed_again_and_again_ends_where_an_undisturbed_one_does(farm: Farm, tmp_path: Path) -> None:
    undisturbed = farm.run("trained", 2, jobs=JOBS, every=2, until=12, dropout=0.3)
    dice = Random(4)
    for number in range(8):
        in_save = number % 2 == 0
        killed = (0 if in_save else dice.randrange(2), dice.randrange(60) if in_save else dice.randrange(1, 12), in_save)
        farm.ranks("trained", 2, jobs=JOBS, folder=tmp_path, every=2, until=12, dropout=0.3, killed=killed)

    ranks = farm.run("trained", 2, jobs=JOBS, folder=tmp_path, every=2, until=12, dropout=0.3)

    assert [{**rank, "resumed": 0} for rank in ranks] == undisturbed


@pytest.mark.parametrize("options", mostly_live([{}, {"zero": True}, {"sharded": True}]), ids=lambda options: "-".join(options) or "plain")
@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 1), (1, 2)])
def test_a_training_resumes_on_another_number_of_ranks(
    farm: Farm, tmp_path: Path, before: int, after: int, options: dict[str, Any]
) -> None:
    farm.run("trained", before, jobs=JOBS, folder=tmp_path, stop_at=10, **options)

    resumed = farm.run("trained", after, jobs=JOBS, folder=tmp_path, **options)[0]

    undisturbed = farm.run("trained", after, jobs=JOBS)[0]
    assert resumed["resumed"] == 8
    assert resumed["lr"] == undisturbed["lr"]
    assert max(abs(a - b) for a, b in zip(resumed["weights"], undisturbed["weights"])) <= 1e-6


def test_only_the_last_few_are_kept_and_the_newest_has_a_name(farm: Farm, tmp_path: Path) -> None:
    farm.run("trained", 2, jobs=JOBS, folder=tmp_path, keep=2)

    assert sorted(path.name for path in tmp_path.iterdir()) == [".writer", "last.pt", "step-00000016", "step-00000020"]
    assert farm.alone("loads_plainly", jobs=JOBS, folder=tmp_path)[0] == "0.weight"


@pytest.mark.parametrize("options", [{}, {"asynchronous": True}, {"sharded": True}], ids=lambda options: "-".join(options) or "plain")
def test_a_full_disk_is_told_and_the_training_goes_on(farm: Farm, tmp_path: Path, options: dict[str, bool]) -> None:
    ranks = farm.run("disk_that_is_full", 2, jobs=JOBS, folder=tmp_path, limit=5000, **options)

    for rank in ranks:
        assert rank["saved"] == [3, 1]
        assert rank["left"] == []
        ((code, summary),) = rank["findings"]
        assert code == "RW707"
        assert "step 2" in summary and "the last good one is of step 1" in summary
    assert ranks[0]["returned"] == [True, "asynchronous" in options, True]


def test_a_folder_that_cannot_be_made_is_told(farm: Farm, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    ranks = farm.run("trained", 2, jobs=JOBS, folder=tmp_path / "file" / "runs", until=4)

    assert [rank["findings"] for rank in ranks] == [["RW707"], ["RW707"]]


@pytest.mark.parametrize("asynchronous", [True, False])
def test_only_asynchronous_writing_lets_the_training_go_on(farm: Farm, tmp_path: Path, asynchronous: bool) -> None:
    there = farm.run("slow_disk", 2, jobs=JOBS, folder=tmp_path, asynchronous=asynchronous)

    assert there == [False, False] if asynchronous else there[0]


@pytest.mark.parametrize("damage", ["flipped", "truncated", "missing", "manifest"])
def test_a_damaged_checkpoint_is_passed_over_and_told(farm: Farm, tmp_path: Path, damage: str) -> None:
    farm.run("trained", 2, jobs=JOBS, folder=tmp_path, stop_at=12)
    path = tmp_path / "step-00000012" / ("manifest.json" if damage == "manifest" else "state.pt")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data if damage == "flipped" else data[:-20])
    if damage == "missing":
        path.unlink()

    ranks = farm.run("trained", 2, jobs=JOBS, folder=tmp_path)

    assert [rank["resumed"] for rank in ranks] == [8, 8]
    assert [rank["findings"] for rank in ranks] == [["RW708"], ["RW708"]]
    assert [rank["weights"] for rank in ranks] == [rank["weights"] for rank in farm.run("trained", 2, jobs=JOBS)]


def test_nothing_but_damaged_checkpoints_is_no_new_beginning(farm: Farm, tmp_path: Path) -> None:
    farm.run("trained", 1, jobs=JOBS, folder=tmp_path, stop_at=4)
    (tmp_path / "step-00000004" / "state.pt").write_bytes(b"")

    outcomes = farm.ranks("trained", 2, jobs=JOBS, folder=tmp_path)

    assert [outcome.code for outcome in outcomes] == ["RW708", "RW711"]


def test_two_trainings_do_not_write_to_one_folder(farm: Farm, tmp_path: Path) -> None:
    hold = "import sys, pathlib, rankwise.train.committed as c; print(c.lock(pathlib.Path(sys.argv[1])), flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", hold, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline() == b"True\n"
        outcomes = farm.ranks("trained", 2, jobs=JOBS, folder=tmp_path, stop_at=4)
        other.kill()

    assert [outcome.code for outcome in outcomes] == ["RW709", "RW711"]
    assert "another process" in outcomes[0].whole
    assert not list(tmp_path.glob("step-*"))
    farm.run("trained", 2, jobs=JOBS, folder=tmp_path, stop_at=4)  # the lock went with the process that had it


@pytest.mark.live
def test_a_folder_that_was_removed_may_be_another_trainings_by_now(tmp_path: Path) -> None:
    checkpoints = train.Checkpoints(tmp_path / "a", model=nn.Linear(2, 2))
    checkpoints.save(1)
    shutil.rmtree(tmp_path / "a")
    assert checkpoints.save(2), "nobody has it"
    shutil.rmtree(tmp_path / "a")
    hold = "import sys, pathlib, rankwise.train.committed as c; print(c.lock(pathlib.Path(sys.argv[1])), flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", hold, str(tmp_path / "a")], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline() == b"True\n"
        with pytest.raises(TrainError, match="another process"):
            checkpoints.save(3)
        other.kill()

    assert not list(tmp_path.glob("a/step-*"))


@pytest.mark.parametrize(
    ("how", "code", "said"),
    [
        ("no resume", "RW709", "up to step 1"),
        ("other model", "RW710", "(4, 4)"),
        ("other names", "RW710", "0.weight"),
        ("more things", "RW710", "no optimizer"),
        ("not plain", "RW710", "loaded again"),
        ("no model", "RW001", "without model="),
        ("no step", "RW001", "step -1"),
        ("zero sharded", "RW001", "sharded_optimizer"),
        ("no state", "RW001", "epoch"),
    ],
)
def test_what_could_not_be_restored_is_refused(farm: Farm, tmp_path: Path, how: str, code: str, said: str) -> None:
    farm.run("misused_checkpoints", 1, jobs=JOBS, folder=tmp_path, how="nothing")

    outcomes = farm.ranks("misused_checkpoints", 2, jobs=JOBS, folder=tmp_path, how=how)

    assert outcomes[0].code == code, outcomes[0]
    assert said in outcomes[0].error
    assert outcomes[1].code in (code, "RW711"), outcomes[1]


@pytest.mark.parametrize("options", [{}, {"sharded": True}], ids=str)
def test_a_good_checkpoint_is_never_replaced(farm: Farm, tmp_path: Path, options: dict[str, Any]) -> None:
    assert farm.run("saved_twice", 2, jobs=JOBS, folder=tmp_path, **options) == [(True, [".writer", "last.pt", "step-00000001"])] * 2


@pytest.mark.parametrize("kind", ["fsdp1", "fsdp2"])
def test_a_model_in_parts_is_saved_by_all_ranks_or_refused(farm: Farm, tmp_path: Path, kind: str) -> None:
    for said, difference in farm.run("saved_in_parts", 2, jobs=JOBS, folder=tmp_path, kind=kind):
        assert "model is in parts on several ranks" in said
        assert difference == 0.0


def test_tied_weights_are_written_once_and_parts_without_the_whole(farm: Farm, tmp_path: Path) -> None:
    size, is_tied = farm.alone("tied_and_cut", jobs=JOBS, folder=tmp_path)

    assert size < 256 * 256 * 4 + 20_000
    assert is_tied


class _Kept:
    def __init__(self, value: Any = None) -> None:
        self.value = value

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["value"]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_module_is_told_the_version_it_was_saved_in(tmp_path: Path, asynchronous: bool) -> None:
    with train.Checkpoints(tmp_path, model=nn.Sequential(Turned()), asynchronous=asynchronous) as checkpoints:
        checkpoints.save(1)
    model = nn.Sequential(Turned())

    train.Checkpoints(tmp_path, model=model).resume()

    assert torch.equal(model[0].weight, Turned().weight)


def test_a_damaged_checkpoint_is_not_kept_in_place_of_a_good_one(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    before = train.Checkpoints(tmp_path, model=model, keep=2)
    before.save(100)
    before.save(200)
    (tmp_path / "step-00000200" / "state.pt").write_bytes(b"damaged")
    checkpoints = train.Checkpoints(tmp_path, model=model, keep=1)
    assert checkpoints.resume() == 100

    assert checkpoints.save(150)

    assert checkpoints.latest() == tmp_path / "step-00000150" / "state.pt"
    assert train.Checkpoints(tmp_path, model=model).resume() == 150


def test_a_checkpoint_that_resume_would_pass_over_is_told_and_not_written(tmp_path: Path) -> None:
    checkpoints = train.Checkpoints(tmp_path, model=nn.Linear(2, 2), keep=1)
    checkpoints.save(100)

    assert not checkpoints.save(5)

    assert [finding.code for finding in checkpoints.findings] == ["RW707"]
    assert checkpoints.latest() == tmp_path / "step-00000100" / "state.pt"


@pytest.mark.parametrize("sharded", [False, True])
def test_other_weights_under_a_step_that_is_there_are_told(tmp_path: Path, sharded: bool) -> None:
    model = nn.Linear(2, 2)
    checkpoints = train.Checkpoints(tmp_path, model=model, sharded=sharded)
    checkpoints.save(1)
    assert checkpoints.save(1)
    nn.init.ones_(model.weight)

    assert not checkpoints.save(1)

    assert "other weights" in checkpoints.findings[0].summary


@pytest.mark.parametrize("sharded", [False, True])
def test_a_skipped_step_after_a_checkpoint_makes_no_other_weights(tmp_path: Path, sharded: bool) -> None:
    model = nn.BatchNorm1d(2)
    checkpoints = train.Checkpoints(tmp_path, model=model, sharded=sharded)
    checkpoints.save(0)
    model(torch.rand(4, 2))

    assert checkpoints.save(0)


def test_a_step_without_its_optimizer_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters())
    step = train.Step(model, optimizer)
    with caplog.at_level("WARNING", "rankwise.train"):
        train.Checkpoints(tmp_path, model=model, optimizer=optimizer, step=step)
        assert not caplog.records
        train.Checkpoints(tmp_path, model=model, step=step)
    assert "no optimizer= is saved" in caplog.text


@pytest.mark.parametrize("folder", ["s3://bucket/runs", Path("gs://bucket/runs")])
def test_an_address_is_not_taken_for_a_folder(folder: str | Path) -> None:
    with pytest.raises(UsageError, match="an address"):
        train.Checkpoints(folder, model=nn.Linear(2, 2))


def test_the_folder_is_the_same_after_a_change_of_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    checkpoints = train.Checkpoints("runs", model=nn.Linear(2, 2))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")

    checkpoints.save(1)

    assert (tmp_path / "runs" / "last.pt").is_file()


_Pair = namedtuple("_Pair", "a b")


@pytest.mark.parametrize("value", [_Pair(1, 2), torch.eye(2).to_sparse(), torch.empty(2, device="meta")], ids=["tuple", "sparse", "meta"])
def test_what_could_not_be_loaded_again_is_a_finding(tmp_path: Path, value: Any) -> None:
    with pytest.raises(TrainError) as caught:
        train.Checkpoints(tmp_path, model=nn.Linear(2, 2), other=_Kept(value)).save(1)

    assert caught.value.finding.code == "RW710"
    assert isinstance(value, torch.Tensor) or "state['other']['value'] is a _Pair" in caught.value.finding.why


def test_a_tensor_and_its_conjugate_view_stay_two(tmp_path: Path) -> None:
    one = torch.tensor([1 + 2j])
    train.Checkpoints(tmp_path, model=nn.Linear(2, 2), other=_Kept([one, one.conj()])).save(1)
    other = _Kept()

    train.Checkpoints(tmp_path, model=nn.Linear(2, 2), other=other).resume()

    assert [complex(tensor) for tensor in other.value] == [1 + 2j, 1 - 2j]


def test_what_the_asynchronous_writer_raises_is_raised_by_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*_: object) -> None:
        raise MemoryError("no room for the buffer")

    checkpoints = train.Checkpoints(tmp_path, model=nn.Linear(2, 2), asynchronous=True)
    monkeypatch.setattr(committed, "write_file", no_memory)
    checkpoints.save(1)

    with pytest.raises(MemoryError):
        checkpoints.wait()


@pytest.mark.parametrize("how", ["renamed", "emptied"])
def test_a_folder_under_another_step_or_without_its_files_is_damaged(tmp_path: Path, how: str) -> None:
    model = nn.Linear(2, 2)
    with train.Checkpoints(tmp_path, model=model) as checkpoints:
        for step in (1, 2):
            nn.init.constant_(model.weight, float(step))
            checkpoints.save(step)
    if how == "renamed":
        shutil.copytree(tmp_path / "step-00000001", tmp_path / "step-00000009")
    else:
        manifest = json.loads((tmp_path / "step-00000002/manifest.json").read_text())
        (tmp_path / "step-00000002/manifest.json").write_text(json.dumps({**manifest, "files": {}}))

    again = train.Checkpoints(tmp_path, model=model)

    assert again.resume() == (2 if how == "renamed" else 1)
    assert model.weight[0, 0] == (2 if how == "renamed" else 1)
    assert [finding.code for finding in again.findings] == ["RW708"]


def test_what_does_not_fit_changes_nothing(tmp_path: Path) -> None:
    with train.Checkpoints(tmp_path, model=nn.Linear(2, 2)) as checkpoints:
        checkpoints.save(1)
    model = nn.Linear(2, 2)
    before = model.weight.detach().clone()

    with pytest.raises(TrainError, match="holds no optimizer"):
        train.Checkpoints(tmp_path, model=model, optimizer=torch.optim.SGD(model.parameters(), 0.1)).resume()

    assert torch.equal(model.weight, before)


def test_what_fails_beside_the_training_is_told_though_nobody_waits(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "a file"
    folder.touch()
    checkpoints = train.Checkpoints(folder, model=nn.Linear(2, 2), asynchronous=True)
    checkpoints.save(1)
    for thread in threading.enumerate():
        if thread.name == "rankwise-checkpoint":
            thread.join()

    assert [record.message[:5] for record in caplog.records] == ["RW707"]
    checkpoints.wait()
    assert [finding.code for finding in checkpoints.findings] == ["RW707"] and len(caplog.records) == 1, "and not told twice"


@pytest.mark.parametrize("sharded", [False, True])
def test_numbers_of_numpy_are_saved_as_what_can_be_loaded_again(farm: Farm, tmp_path: Path, sharded: bool) -> None:
    for resumed, rates, kind in farm.run("numbers_of_numpy", 2, jobs=JOBS, folder=tmp_path, sharded=sharded):
        assert resumed == 2 and kind == "float"
        assert rates == [pytest.approx(0.5 * math.cos(2), abs=1e-12)] * 2


def test_what_becomes_something_else_in_the_training_is_found_when_it_is_saved(tmp_path: Path) -> None:
    kept, model = _Kept(), nn.Linear(2, 2)
    checkpoints = train.Checkpoints(tmp_path, model=model, kept=kept)
    checkpoints.save(1)
    kept.value = Random(1)

    with pytest.raises(TrainError, match=r"state\['kept'\]\['value'\] is a Random") as raised:
        checkpoints.save(2)

    assert raised.value.finding.code == "RW710"
    assert train.Checkpoints(tmp_path, model=model, kept=kept).resume() == 1


@pytest.mark.parametrize("kind", ["fsdp1", "fsdp2"])
def test_what_is_in_parts_under_another_name_is_refused(farm: Farm, tmp_path: Path, kind: str) -> None:
    for opt, average in farm.run("others_in_parts", 2, jobs=JOBS, folder=tmp_path, kind=kind):
        assert opt == "opt is in parts on several ranks" and average == "average is in parts on several ranks"


@pytest.mark.parametrize(("sharded", "rank", "code"), [(False, 0, "RW711"), (True, 0, "RW710"), (True, 1, "RW710")])
def test_a_state_that_one_rank_cannot_collect_is_told_to_all(farm: Farm, tmp_path: Path, sharded: bool, rank: int, code: str) -> None:
    outcomes = farm.ranks("uncollectable", 3, jobs=JOBS, folder=tmp_path, sharded=sharded, rank=rank, timeout_s=20)

    assert [outcome.code for outcome in outcomes] == [None if number == rank else code for number in range(3)], outcomes
    assert all("no state today" in outcome.error for outcome in outcomes)


def test_a_checkpoint_inside_a_window_is_told_to_all_ranks(farm: Farm, tmp_path: Path) -> None:
    outcomes = farm.ranks("saved_inside_a_window", 2, jobs=JOBS, folder=tmp_path, timeout_s=20)

    assert [outcome.code for outcome in outcomes] == ["RW705", "RW711"], outcomes


def trained_until_left(folder: Path, accumulate: int, source: str, left_at: int | None = None, how: str = "") -> list[float]:
    """Two epochs of six batches, or until a batch is taken (`top`) or has given its gradients (`bottom`); that leaves the loop."""
    model = small_model()
    step = train.Step(model, torch.optim.AdamW(model.parameters()), accumulate=accumulate)
    data = regression_data(23)
    loader = train.Loader(Stream(data) if source == "stream" else data, 4, shuffle=source != "stream")
    checkpoints = train.Checkpoints(folder, model=model, optimizer=step.optimizer, step=step, loader=loader)
    checkpoints.resume()
    number = 0
    for _ in loader.epochs(2):
        for x, y in step.over(loader, count=(lambda batch: len(batch[0])) if source == "counted" else None):
            number += 1
            if number == left_at and how == "top":
                break
            with step:
                loss = nn.functional.mse_loss(model(x), y)
            step.backward(loss)
            if number == left_at:
                break
        if number == left_at:
            checkpoints.save(step.count)
            break
    return flat(model)


@pytest.mark.parametrize("source", ["planned", "counted", "stream"])
@pytest.mark.parametrize(
    ("accumulate", "left_at", "how"), [(1, 3, "top"), (1, 6, "top"), (4, 2, "bottom"), (4, 6, "top"), (4, 5, "bottom")]
)
def test_batches_that_were_not_stepped_yet_are_read_again(tmp_path: Path, source: str, accumulate: int, left_at: int, how: str) -> None:
    undisturbed = trained_until_left(tmp_path / "undisturbed", accumulate, source)
    trained_until_left(tmp_path, accumulate, source, left_at, how)

    assert trained_until_left(tmp_path, accumulate, source) == undisturbed


def test_a_checkpoint_before_a_batchs_loss_holds_the_place_before_that_batch(tmp_path: Path) -> None:
    model = small_model()
    step = train.Step(model, torch.optim.AdamW(model.parameters()))
    loader = train.Loader(regression_data(23), 4)
    for number, (x, _) in enumerate(step.over(loader)):
        if number == 2:
            assert loader.state_dict()["done"] == 8
        step.backward(model(x).mean())

    assert loader.state_dict() == {**loader.state_dict(), "epoch": 1, "done": 0}


def test_tensors_around_others_are_saved_each_with_its_own_values(farm: Farm, tmp_path: Path) -> None:
    saved, resumed = farm.run("whole_of_parts", 1, jobs=JOBS, folder=tmp_path)[0]

    assert saved == resumed and len(set(saved)) == len(saved)


class _Named(torch.Tensor):
    pass


@pytest.mark.parametrize("asynchronous", [False, True])
def test_tensors_under_another_name_come_back(tmp_path: Path, asynchronous: bool) -> None:
    model = nn.Linear(2, 2)
    model.register_buffer("scale", torch.tensor([2.0, 3.0]).as_subclass(_Named))  # type: ignore[no-untyped-call]
    with train.Checkpoints(tmp_path, model=model, asynchronous=asynchronous) as checkpoints:
        assert checkpoints.save(1)
    model.get_buffer("scale").zero_()

    assert train.Checkpoints(tmp_path, model=model).resume() == 1
    assert model.get_buffer("scale").tolist() == [2.0, 3.0]


def test_each_rank_gets_back_its_own_place_in_what_it_reads_on_its_own(farm: Farm, tmp_path: Path) -> None:
    farm.run("reads_on_its_own", 2, jobs=JOBS, folder=tmp_path, taken=[3, 5])

    assert farm.run("reads_on_its_own", 2, jobs=JOBS, folder=tmp_path, taken=[]) == [3, 15]
    outcomes = farm.ranks("reads_on_its_own", 3, jobs=JOBS, folder=tmp_path, taken=[])
    assert [outcome.code for outcome in outcomes] == ["RW710"] * 3, outcomes
    assert "data of 2 ranks, and there are 3" in outcomes[2].error


def test_a_place_that_is_the_same_on_all_ranks_serves_another_number_of_them(farm: Farm, tmp_path: Path) -> None:
    farm.run("reads_on_its_own", 2, jobs=JOBS, folder=tmp_path, taken=[4, 4])

    assert farm.run("reads_on_its_own", 3, jobs=JOBS, folder=tmp_path, taken=[]) == [4, 14, 24]


@pytest.mark.parametrize("is_tensor", [False, True])
def test_each_rank_gets_back_its_own_numbers(farm: Farm, tmp_path: Path, is_tensor: bool) -> None:
    farm.run("stands_somewhere", 2, jobs=JOBS, folder=tmp_path, place=10, is_tensor=is_tensor)

    assert farm.run("stands_somewhere", 2, jobs=JOBS, folder=tmp_path) == [10, 11]
    assert farm.run("stands_somewhere", 3, jobs=JOBS, folder=tmp_path) == [10, 10, 10], "a best loss that rank 0 alone knows"


def test_what_is_not_asked_for_does_not_keep_another_number_of_ranks_from_resuming(farm: Farm, tmp_path: Path) -> None:
    farm.run("reads_on_its_own", 2, jobs=JOBS, folder=tmp_path, taken=[3, 5])

    assert train.Checkpoints(tmp_path, model=nn.Linear(1, 1)).resume() == 1


def test_an_optimizers_state_is_not_given_to_parameters_in_another_order(tmp_path: Path) -> None:
    def things(*names: str) -> dict[str, Any]:
        model = nn.ModuleDict({name: nn.Linear(2, 2) for name in names})
        return {"model": model, "optimizer": torch.optim.AdamW(model.parameters())}

    train.Checkpoints(tmp_path, **things("a", "b")).save(1)

    with pytest.raises(TrainError, match=r"RW710.* in another order: a.weight where b.weight is now"):
        train.Checkpoints(tmp_path, **things("b", "a")).resume()
    assert train.Checkpoints(tmp_path, model=things("b", "a")["model"]).resume() == 1


def test_a_scheduler_that_counts_goes_on_counting(tmp_path: Path) -> None:
    """After a warm-up, MultiStepLR is asked for the elements of its milestones, which are a Counter."""

    def things() -> tuple[Any, train.Checkpoints]:
        model = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        rates = torch.optim.lr_scheduler
        parts: Any = [rates.LinearLR(optimizer, 0.1, 1, 3), rates.MultiStepLR(optimizer, [2])]
        scheduler = rates.SequentialLR(optimizer, parts, [3])
        optimizer.step()
        return scheduler, train.Checkpoints(tmp_path, model=model, optimizer=optimizer, scheduler=scheduler)

    undisturbed, checkpoints = things()
    checkpoints.save(0)
    resumed, checkpoints = things()
    checkpoints.resume()

    for _ in range(6):
        undisturbed.step()
        resumed.step()
        assert resumed.get_last_lr() == undisturbed.get_last_lr()


def test_the_newest_is_the_one_that_is_being_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = committed.begin
    monkeypatch.setattr(committed, "begin", lambda *args: (time.sleep(0.1), begin(*args))[1])
    checkpoints = train.Checkpoints(tmp_path, model=nn.Linear(2, 2), asynchronous=True)

    for step in (1, 2):
        checkpoints.save(step)
        assert checkpoints.latest() == tmp_path / f"step-{step:08d}" / "state.pt", "or the best one would be a copy of the one before"


@pytest.mark.parametrize(
    ("is_saved", "theirs", "said"),
    [
        (False, Path("runs/step-00000001/state.pt"), "rank 1 sees runs/step-00000001/state.pt, rank 0 sees no checkpoint"),
        (True, None, "rank 1 cannot see"),
        (True, b"{}", "rank 1 has other files in"),
    ],
)
def test_a_folder_that_is_another_one_on_each_node_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_saved: bool, theirs: object, said: str
) -> None:
    checkpoints = train.Checkpoints(tmp_path, model=nn.Linear(2, 2))
    if is_saved:
        checkpoints.save(1)
    monkeypatch.setattr(group, "gathered", lambda mine, _: [mine, theirs])

    with pytest.raises(TrainError, match=said) as caught:
        checkpoints.resume()

    assert caught.value.finding.code == "RW710" and "the same on all nodes" in caught.value.finding.why


def test_each_rank_gets_back_its_own_sums_of_a_metric(farm: Farm, tmp_path: Path) -> None:
    assert farm.run("sums_of_a_metric", 2, jobs=JOBS, folder=tmp_path, is_saved=True) == [1.0, 2.0]
    assert farm.run("sums_of_a_metric", 2, jobs=JOBS, folder=tmp_path, is_saved=False) == [1.0, 2.0]
