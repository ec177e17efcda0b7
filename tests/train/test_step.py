"""The step: where gradients are exchanged, clipped, refused and dropped."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import TensorDataset

from rankwise.errors import UsageError
from rankwise.train import Loader, Step
from tests.train.farm import Farm


@pytest.mark.parametrize(("accumulate", "expected"), [(1, [1] * 7), (3, [0, 0, 1, 0, 0, 1, 1]), (4, [0, 0, 0, 1, 0, 0, 1])])
def test_gradients_are_exchanged_once_in_each_window_also_the_short_last_one(farm: Farm, accumulate: int, expected: list[int]) -> None:
    assert farm.run("collectives_in_windows", 2, accumulate=accumulate) == [expected] * 2


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_one_ranks_infinite_gradients_make_all_ranks_skip_the_same_step(farm: Farm, precision: str) -> None:
    first, second = farm.run("train_with_a_poisoned_batch", 2, precision=precision)

    assert first == second
    assert first["stepped"] == [True, False, True, True]
    assert (first["skipped"], first["count"]) == (1, 3)
    assert first["lr"] == pytest.approx(3e-3 / 8), "the scheduler moves with the optimizer only"


def test_fp16_lowers_its_scale_until_the_gradients_are_finite(farm: Farm) -> None:
    first, second = farm.run("train_with_a_poisoned_batch", 2, precision="fp16")

    assert first == second
    assert first["stepped"][1] is False and first["stepped"][3]


def test_all_ranks_lower_the_scale_for_what_is_not_finite_in_one_part(farm: Farm) -> None:
    first, second = farm.run("scale_after_an_overflow_in_one_part", 2, jobs="tests.train.jobs_checkpoints")

    assert first == second and first[1] > 0


def test_gradients_that_are_never_finite_end_the_training(farm: Farm) -> None:
    outcomes = farm.ranks("train_with_infinite_losses", 2)

    assert [outcome.code for outcome in outcomes] == ["RW704", "RW704"]


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_what_the_optimizer_is_given_is_unscaled_and_clipped(farm: Farm, precision: str) -> None:
    norms = farm.run("clipped_norms", 2, precision=precision)[0]

    assert norms and all(norm == pytest.approx(0.01, rel=1e-3) for norm in norms)


@pytest.mark.parametrize(
    ("how", "code", "said"),
    [
        ("bare model", "RW714", "2 ranks"),
        ("wrapped before the group", "RW714", "2 ranks"),
        ("other parameters", "RW702", "4 of 4"),
        ("with outside", "RW705", "outside"),
        ("batch left out", "RW705", "left out"),
        ("backward twice", "RW705", "without a batch"),
        ("save inside", "RW705", "inside a window"),
        ("no mean", "RW001", "shape"),
        ("no gradient", "RW001", "no gradient"),
        ("no tensor", "RW001", "is a float"),
        ("no optimizer", "RW001", "is a NoneType"),
        ("clipped to nothing", "RW001", "clip_norm=0"),
    ],
)
def test_misuse_is_refused_on_every_rank(farm: Farm, how: str, code: str, said: str) -> None:
    outcomes = farm.ranks("misuse_step", 2, how=how)

    assert [outcome.code for outcome in outcomes] == [code, code], outcomes
    assert said in outcomes[0].error


def test_a_loop_that_one_rank_alone_has_left_is_told_to_all(farm: Farm) -> None:
    outcomes = farm.ranks("loops_left_by_one_rank", 2)

    assert [outcome.code for outcome in outcomes] == ["RW705", "RW705"], outcomes
    assert "rank 1 is in its loop number 3 over batches, rank 0 in number 2" in outcomes[0].error


def test_a_rank_without_any_batch_is_named(farm: Farm) -> None:
    outcomes = farm.ranks("train_over_plain_dataloader", 2, lengths=[6, 0])

    assert [outcome.code for outcome in outcomes] == ["RW712", "RW712"], outcomes
    assert "rank 1 has no batch" in outcomes[0].error
    assert "rank 1" in outcomes[1].error


@pytest.mark.parametrize("stream", [False, True], ids=["map-style", "stream"])
@pytest.mark.parametrize(
    ("length", "global_batch", "uneven", "last"),
    [
        (103, 12, "join", [[3, 3], [2, 2], [2, 2], [2, 0]]),
        (98, 12, "join", [[2, 2], [2, 0], [2, 0], [2, 0]]),
        (97, 12, "pad", [[2, 2]] * 4),
        (36, 6, "join", [[2, 2], [2, 2], [2, 2], [2, 0]]),
    ],
)
def test_no_rank_gets_a_batch_that_batch_norm_cannot_take(
    farm: Farm, length: int, global_batch: int, uneven: str, last: list[list[int]], stream: bool
) -> None:
    ranks = farm.run("train_with_batch_norm", 4, length=length, global_batch=global_batch, uneven=uneven, stream=stream)

    assert [sizes[-1] for _, sizes, _ in ranks] == last
    assert all(rank[0] == ranks[0][0] for rank in ranks)
    assert any("get none in any step" in line for line in ranks[0][2]) == (global_batch == 6)


def test_a_last_step_with_too_few_samples_for_any_rank_is_told_before_the_epoch(farm: Farm) -> None:
    """Of one sample BatchNorm fails in one process, too, if it is one value per channel; nobody can know that before."""
    told = farm.run("train_with_batch_norm", 2, length=27, global_batch=24, min_batch_size=4)[0][2]
    ranks = farm.ranks("train_with_batch_norm", 2, length=25, global_batch=12)

    assert any("has 3 samples, where the model's layers want 4" in line for line in told)
    assert all("Expected more than 1 value per channel" in rank.error for rank in ranks)
    assert farm.run("train_with_batch_norm", 2, length=25, global_batch=12, uneven="drop")


class Words(nn.Module):
    def __init__(self, sparse: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.head = nn.Embedding(10, 4, sparse=sparse), nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.words(x).mean(1)).squeeze(1)  # type: ignore[no-any-return]


@pytest.mark.parametrize("clip_norm", [None, 0.1])
def test_sparse_gradients_are_measured_and_clipped_like_dense_ones(clip_norm: float | None) -> None:
    data = TensorDataset(torch.arange(36).reshape(12, 3) % 7, torch.linspace(-3, 3, 12))
    ends = []
    for sparse in (False, True):
        model = Words(sparse)
        step = Step(model, torch.optim.SGD(model.parameters(), lr=0.1), accumulate=2, clip_norm=clip_norm)
        for x, y in step.over(Loader(data, batch_size=4)):
            with step:
                loss = mse_loss(model(x), y)
            step.backward(loss)
        ends.append(torch.cat([torch.tensor([step.grad_norm]), *(p.detach().flatten() for p in model.parameters())]))

    torch.testing.assert_close(*ends)


def test_a_batch_in_which_nothing_counts_costs_the_others_no_step(farm: Farm) -> None:
    first, second = farm.run("train_with_a_batch_without_tokens", 2)

    assert first == second and first[:2] == (4, 0)
    assert first[2] == pytest.approx(farm.alone("tokens_by_hand"), abs=1e-6)


def test_what_step_cannot_step_is_refused_before_the_first_one() -> None:
    model = nn.Linear(2, 1)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(UsageError, match=r"LBFGS.*closure"):
        Step(model, torch.optim.LBFGS(model.parameters()))
    with pytest.raises(UsageError, match=r"ReduceLROnPlateau.*metrics"):
        Step(model, sgd, scheduler=torch.optim.lr_scheduler.ReduceLROnPlateau(sgd))


def test_the_state_holds_the_schedulers() -> None:
    model = nn.Linear(2, 1)

    def step() -> Step:
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        return Step(model, sgd, scheduler=torch.optim.lr_scheduler.LambdaLR(sgd, lambda count: 1 / (1 + count)))

    first, second = step(), step()
    for x in first.over([torch.ones(1, 2)] * 3):
        with first:
            loss = model(x).sum()
        first.backward(loss)
    second.load_state_dict(first.state_dict())

    assert second.scheduler.last_epoch == 3
    second.load_state_dict({"count": 1, "num_skipped": 0, "scaler": {}})  # as earlier versions wrote it
    assert second.count == 1


@pytest.mark.parametrize("first", [0, 1])
def test_gradients_that_another_models_loss_left_are_not_stepped(first: int) -> None:
    """Two models that train against each other: the loss of each goes through both."""
    data = torch.randn(8, 3, generator=torch.Generator().manual_seed(1))

    def models() -> list[nn.Module]:
        torch.manual_seed(0)
        return [nn.Linear(3, 3), nn.Linear(3, 1)]

    def loss(pair: list[nn.Module], x: torch.Tensor, number: int) -> torch.Tensor:
        return (pair[1](pair[0](x)).mean() - number) ** 2

    plain, ours = models(), models()
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in plain]
    for x in data.split(2):
        for number in (first, 1 - first):
            optimizers[number].zero_grad()
            loss(plain, x, number).backward()
            optimizers[number].step()

    steps = [Step(model, torch.optim.SGD(model.parameters(), lr=0.1)) for model in ours]
    loaders = [Loader(data, batch_size=2) for _ in steps]  # type: ignore[arg-type]
    for xs in zip(*(step.over(loader) for step, loader in zip(steps, loaders))):
        for number in (first, 1 - first):
            with steps[number]:
                value = loss(ours, xs[number], number)
            steps[number].backward(value)

    for model, other in zip(ours, plain):
        assert torch.equal(model.weight, other.weight)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("ddp", "over 2 of 4 ranks"),
        ("fsdp1", "over 2 of 4 ranks"),
        ("fsdp2", "over 2 of 4 ranks"),
        ("tensor parallel", "tensor parallelism inside FSDP on 4 ranks"),
    ],
)
def test_a_model_whose_ranks_share_samples_is_refused(farm: Farm, how: str, said: str) -> None:
    outcomes = farm.ranks("step_of_ranks_that_share_samples", 4, how=how)

    assert [outcome.code for outcome in outcomes] == ["RW001"] * 4, outcomes
    assert said in outcomes[3].error
