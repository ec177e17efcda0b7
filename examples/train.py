"""Trains a small network on two interleaved half moons with DDP: `rankwise run --standalone --nproc-per-node 2 train.py`."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 2)))
    train(model, two_moons(num_points=8192))
    dist.destroy_process_group()


def two_moons(num_points: int) -> TensorDataset:
    """Two half circles, one per class, that no straight line separates."""
    angles = torch.rand(num_points) * torch.pi
    labels = torch.arange(num_points) % 2
    upper = torch.stack([angles.cos(), angles.sin()], dim=1)
    lower = torch.stack([1 - angles.cos(), 0.5 - angles.sin()], dim=1)
    points = torch.where(labels[:, None] == 0, upper, lower)
    return TensorDataset(points + 0.1 * torch.randn_like(points), labels)


def train(model: nn.Module, data: TensorDataset) -> None:
    sampler = DistributedSampler(data, seed=0)
    loader = DataLoader(data, batch_size=64, sampler=sampler)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(5):
        sampler.set_epoch(epoch)
        for points, labels in loader:
            loss = cross_entropy(model(points), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        report(epoch, loss.detach())


def report(epoch: int, loss: torch.Tensor) -> None:
    """Rank 0 prints the last loss of every rank."""
    losses = [torch.zeros_like(loss) for _ in range(dist.get_world_size())]
    dist.all_gather(losses, loss)
    if dist.get_rank() == 0:
        print(f"epoch {epoch}: loss", ", ".join(f"{value:.3f} on rank {rank}" for rank, value in enumerate(losses)), flush=True)


if __name__ == "__main__":
    main()
