"""Trains a small network with DDP to tell two half moons apart."""

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
    """Two noisy half circles, one per class, that no straight line separates."""
    angles = torch.rand(num_points) * torch.pi
    labels = torch.arange(num_points) % 2
    upper = torch.stack([angles.cos(), angles.sin()], dim=1)
    lower = torch.stack([1 - angles.cos(), 0.5 - angles.sin()], dim=1)
    points = torch.where(labels[:, None] == 0, upper, lower)
    points += 0.15 * torch.randn_like(points)
    return TensorDataset(points, labels)


def train(model: nn.Module, data: TensorDataset) -> None:
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=64, sampler=sampler)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(5):
        sampler.set_epoch(epoch)
        losses = []
        for points, labels in loader:
            loss = cross_entropy(model(points), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        report(epoch, torch.stack(losses).mean())


def report(epoch: int, loss: torch.Tensor) -> None:
    """Rank 0 prints the mean loss of all ranks."""
    losses = [torch.zeros_like(loss) for _ in range(dist.get_world_size())]
    dist.all_gather(losses, loss)
    if dist.get_rank() == 0:
        print(f"epoch {epoch}: loss {torch.stack(losses).mean():.3f}", flush=True)


if __name__ == "__main__":
    main()
