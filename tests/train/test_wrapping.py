"""Wrapping: DDP's settings from a dry run, the order of everything else, and what is refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from rankwise.train import wrap
from rankwise.train.parameters import ParameterState, find_change
from rankwise.train.wrapping import matching_modules, numbered
from tests.train.farm import Farm

JOBS = "tests.train.jobs_wrap"


def test_a_plain_model_gets_the_cheap_settings(farm: Farm) -> None:
    chosen = farm.run("chosen", 2, jobs=JOBS, kind="plain")[0]

    assert (chosen["view"], chosen["unused"], chosen["static"]) == (True, False, False)
    assert chosen["untouched"], "the dry run changed the model or the random generator"


@pytest.mark.parametrize(("kind", "names"), [("unused", ["right.weight"]), ("unused by rank", ["left.weight", "right.weight"])])
def test_unused_parameters_are_searched_for_only_where_the_dry_run_shows_them(farm: Farm, kind: str, names: list[str]) -> None:
    ranks = farm.run("chosen", 2, jobs=JOBS, kind=kind)

    for chosen in ranks:
        assert chosen["unused"] and chosen["untouched"]
        assert all(any(name in line for line in chosen["said"]) for name in names), chosen["said"]
    assert ranks[0]["trained"] == ranks[1]["trained"]


def test_two_gradients_in_one_backward_make_the_graph_static(farm: Farm) -> None:
    chosen = farm.run("chosen", 2, jobs=JOBS, kind="reentrant")[0]

    assert chosen["static"] and any("shared.weight" in line for line in chosen["said"])


def test_sparse_gradients_do_not_share_memory_with_buckets(farm: Farm) -> None:
    assert farm.run("chosen", 2, jobs=JOBS, kind="sparse")[0]["view"] is False


@pytest.mark.parametrize(
    "options",
    [{"recompute": "0"}, {"recompute": ["0.*", "1"]}, {"compile": {"backend": "eager"}}, {"find_unused_parameters": True}],
    ids=str,
)
def test_recomputing_and_compiling_change_neither_names_nor_results(farm: Farm, options: dict[str, Any]) -> None:
    plain = farm.run("train_wrapped", 2, jobs=JOBS)[0]

    other = farm.run("train_wrapped", 2, jobs=JOBS, **options)[0]

    assert other["names"] == plain["names"] == ["0.0.weight", "0.0.bias", "1.0.weight", "1.0.bias"]
    assert other["same"]
    assert other["graphs"] == ("compile" in options)
    assert other["weights"] == pytest.approx(plain["weights"], abs=1e-6)


@pytest.mark.live
@pytest.mark.skipif(not shutil.which("g++"), reason="torch.compile's default backend needs g++, which is not installed")
def test_a_model_compiled_to_native_code_trains_and_is_saved_like_the_plain_one(farm: Farm, tmp_path: Path) -> None:
    plain = farm.run("train_wrapped", 2, jobs=JOBS)

    compiled = farm.run("train_wrapped", 2, jobs=JOBS, folder=tmp_path, compile=True, timeout_s=120)

    assert [rank["graphs"] for rank in compiled] == [1, 1] and compiled[0]["native"]
    assert compiled[0]["names"] == plain[0]["names"]
    assert compiled[0]["weights"] == compiled[1]["weights"] == pytest.approx(plain[0]["weights"], abs=1e-5)


def test_a_recomputed_module_runs_twice(farm: Farm) -> None:
    assert farm.alone("recomputed_forwards", jobs=JOBS) == 2


@pytest.mark.parametrize("patterns", [["0.*"], ["0*"], ["0.0.1", "0.0", "0.1"]])
def test_what_is_inside_of_a_recomputed_module_is_not_recomputed_again(patterns: list[str]) -> None:
    model = nn.Sequential(nn.ModuleList(nn.Sequential(nn.Linear(1, 1), nn.ReLU()) for _ in range(2)))

    assert matching_modules(model, patterns) == ["0.0", "0.1"]


def test_scripted_modules_are_no_obstacle_to_recomputing_others() -> None:
    model = nn.Sequential(torch.jit.script(nn.Linear(1, 1)), nn.Linear(1, 1))

    assert matching_modules(model, ["1"]) == ["1"]


def test_batchnorm_that_cannot_be_synchronised_is_said(farm: Farm) -> None:
    assert "GPUs only" in farm.run("batchnorm_on_cpu", 2, jobs=JOBS)[0][0]


@pytest.mark.parametrize(
    ("how", "code", "said"),
    [
        ("replaced", "RW217", "replaced: 2.weight, 2.bias"),
        ("added", "RW217", "added: 3.weight, 3.bias"),
        ("frozen", "RW217", "frozen or thawed: 0.weight"),
        ("retyped", "RW217", "another dtype"),
    ],
)
def test_a_model_changed_after_wrapping_is_refused(farm: Farm, how: str, code: str, said: str) -> None:
    outcomes = farm.ranks("change_after_wrap", 2, jobs=JOBS, how=how)

    assert [outcome.code for outcome in outcomes] == [code, code], outcomes
    assert said in outcomes[0].error


def test_a_parameter_moved_after_wrapping_is_found() -> None:
    before = {"weight": ParameterState(1, torch.device("cuda:0"), torch.float32, True)}
    now = {"weight": ParameterState(1, torch.device("cuda:1"), torch.float32, True)}

    finding = find_change(before, now)

    assert finding is not None and finding.code == "RW701"
    assert "cuda:0" in finding.summary and "cuda:1" in finding.summary
    assert find_change(before, before) is None


@pytest.mark.parametrize(
    ("how", "code", "said"),
    [
        ("different models", "RW216", "rank 1"),
        ("plain list", "RW713", "layers"),
        ("lazy", "RW001", "no shape yet"),
        ("no such module", "RW001", "layers.*"),
        ("no such option", "RW001", "find_unused"),
        ("meta", "RW701", "0.weight is on meta"),
    ],
)
def test_what_ddp_would_get_wrong_is_refused(farm: Farm, how: str, code: str, said: str) -> None:
    outcomes = farm.ranks("wrap_something_wrong", 2, jobs=JOBS, how=how)

    assert [outcome.code for outcome in outcomes] == [code, code], outcomes
    assert said in outcomes[0].error


def test_a_dry_run_puts_back_buffers_that_forward_replaces() -> None:
    model = Mean()

    wrap(model, device="cpu", sample=torch.ones(4, 6))

    assert model.mean.tolist() == [0.0] * 3 and model.last is None


def test_a_gpu_without_a_number_is_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 2)

    assert numbered(torch.device("cuda")) == torch.device("cuda:2")
    assert numbered(torch.device("cuda:1")) == torch.device("cuda:1")
    assert numbered(torch.device("cpu")) == torch.device("cpu")


class Mean(nn.Module):
    """Keeps a mean by putting a new buffer in the place of the old one."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("last", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.layer(x)
        self.mean = 0.9 * self.mean + 0.1 * y.detach().mean(0)
        self.last = y.detach()
        return y


def test_a_dry_run_gives_lazy_layers_their_shape(farm: Farm) -> None:
    assert farm.run("lazy_with_sample", 2, jobs=JOBS) == [[2, 5], [2, 5]]


def test_a_model_without_anything_to_train_needs_no_ddp(farm: Farm) -> None:
    assert farm.run("wrap_frozen", 2, jobs=JOBS) == ["Sequential"] * 2
