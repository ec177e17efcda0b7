"""What the ranks of the farm do in the tests of wrapping."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._dynamo.utils import counters
from torch._inductor import config as inductor
from torch.nn.functional import mse_loss
from torch.utils.checkpoint import checkpoint

from rankwise.train import Checkpoints, Loader, Step, group, unwrap, wrap
from tests.train.jobs import flat, regression_data, small_model


class Said(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        logging.getLogger("rankwise.train").addHandler(self)
        logging.getLogger("rankwise.train").setLevel(logging.INFO)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


class Branches(nn.Module):
    """Two branches, of which `forward` uses one; which one may depend on the rank."""

    def __init__(self, by_rank: bool) -> None:
        super().__init__()
        self.body, self.left, self.right = nn.Linear(6, 6), nn.Linear(6, 3), nn.Linear(6, 3)
        self.norm = nn.BatchNorm1d(6)
        self.use_left = not by_rank or group.rank() == 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(self.body(x))
        return self.left(hidden) if self.use_left else self.right(hidden)


class Reentrant(nn.Module):
    """One layer in two re-entrant checkpoints: two gradients in one backward."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.shared = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x)
        for _ in range(2):
            hidden = checkpoint(self.shared, hidden, use_reentrant=True)
        return hidden[:, :3]


def train_a_little(model: nn.Module, num_batches: int = 6) -> list[float]:
    step = Step(model, torch.optim.SGD(model.parameters(), lr=0.05), accumulate=2)
    for x, y in step.over(Loader(regression_data(num_batches * 4), global_batch_size=4)):
        with step:
            loss = mse_loss(model(x), y)
        step.backward(loss)
    return flat(model)


def chosen(kind: str) -> dict[str, Any]:
    """What wrapping chose, and whether training then works."""
    said = Said()
    torch.manual_seed(0)
    model = {
        "plain": small_model,
        "unused": lambda: Branches(by_rank=False),
        "unused by rank": lambda: Branches(by_rank=True),
        "sparse": lambda: nn.EmbeddingBag(4, 3, sparse=True),
        "reentrant": Reentrant,
    }[kind]()
    before = [tensor.clone() for tensor in model.state_dict().values()]
    draw = torch.random.get_rng_state()
    sample = torch.zeros(2, 2, dtype=torch.int64) if kind == "sparse" else torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
    wrapped = wrap(model, device="cpu", sample=sample)
    untouched = all(torch.equal(a, b) for a, b in zip(before, model.state_dict().values())) and torch.equal(
        draw, torch.random.get_rng_state()
    )
    clean = all(parameter.grad is None for parameter in model.parameters())
    result = {
        "view": wrapped.gradient_as_bucket_view,
        "unused": wrapped.find_unused_parameters,
        "static": wrapped.static_graph,
        "said": said.lines,
        "untouched": untouched and clean,
    }
    if kind != "sparse":
        result["trained"] = train_a_little(wrapped)
    return result


def train_wrapped(folder: Path | None = None, **options: Any) -> dict[str, Any]:
    """Train; with a folder, the names are those in a checkpoint there, and it takes what torch.compile builds."""
    if folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "compiled")
        inductor.cpp_cache_precompile_headers = False  # pays off for many kernels; here it takes longer than all of them
        inductor.cpp.simdlen = 1  # the same for trying out what the processor can do
    torch.manual_seed(0)
    net = nn.Sequential(nn.Sequential(nn.Linear(6, 16), nn.Tanh()), nn.Sequential(nn.Linear(16, 3)))
    wrapped = wrap(net, device="cpu", **options)
    weights = train_a_little(wrapped)
    state = unwrap(wrapped).state_dict()
    if folder:
        Checkpoints(folder, model=wrapped).save(1)
        state = torch.load(folder / "last.pt", weights_only=True)["model"]
    native = bool(list(folder.rglob("*.so"))) if folder else False
    graphs = counters["stats"]["unique_graphs"]
    return {"names": list(state), "weights": weights, "same": unwrap(wrapped) is net, "graphs": graphs, "native": native}


def recomputed_forwards() -> int:
    """How often the first block runs in one forward and backward."""
    net = nn.Sequential(nn.Sequential(nn.Linear(6, 16), nn.Tanh()), nn.Linear(16, 3))
    times = []
    net[0][0].register_forward_hook(lambda *_: times.append(1))
    wrapped = wrap(net, device="cpu", recompute="0")
    wrapped(torch.randn(2, 6)).sum().backward()
    return len(times)


def batchnorm_on_cpu() -> list[str]:
    said = Said()
    wrap(nn.BatchNorm1d(2), device="cpu", sync_batchnorm=True)
    return said.lines


def change_after_wrap(how: str) -> None:
    net = small_model()
    wrapped = wrap(net, device="cpu")
    if how == "replaced":
        net[2] = nn.Linear(16, 3)
    elif how == "added":
        net.append(nn.Linear(3, 3))
    elif how == "frozen":
        net[0].weight.requires_grad_(False)
    elif how == "retyped":
        net.to(torch.float64)
    step = Step(wrapped, torch.optim.SGD(wrapped.parameters(), lr=0.1))
    for _ in step.over(Loader(regression_data(4), batch_size=2)):
        raise AssertionError("not refused")


def wrap_something_wrong(how: str) -> None:
    if how == "different models":
        wrap(nn.Linear(4, 2 + group.rank()), device="cpu")
    elif how == "plain list":
        net = nn.Linear(2, 2)
        net.layers = [nn.Linear(2, 2)]
        wrap(net, device="cpu")
    elif how == "lazy":
        wrap(nn.LazyLinear(2), device="cpu")
    elif how == "no such module":
        wrap(small_model(), device="cpu", recompute="layers.*")
    elif how == "no such option":
        wrap(small_model(), device="cpu", find_unused=True)
    elif how == "meta":
        net = small_model()
        net[0].weight = nn.Parameter(torch.empty(16, 6, device="meta"))
        net.to = lambda device: net  # a model that keeps its parts where they are
        wrap(net, device="cpu")


def lazy_with_sample() -> list[int]:
    return list(unwrap(wrap(nn.LazyLinear(2), device="cpu", sample=torch.zeros(1, 5))).weight.shape)


def wrap_frozen() -> str:
    """A teacher, say."""
    return type(wrap(small_model().requires_grad_(False), device="cpu")).__name__
