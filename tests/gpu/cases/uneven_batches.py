import torch
import torch.distributed as dist
from common import small_model, start
from torch.utils.data import DataLoader, TensorDataset

rank = start()
model = small_model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = TensorDataset(torch.randn(64 if rank == 0 else 48, 16))
for (x,) in DataLoader(data, batch_size=8):
    optimizer.zero_grad()
    model(x.cuda()).square().mean().backward()
    optimizer.step()
dist.barrier()  # now
torch.cuda.synchronize()
