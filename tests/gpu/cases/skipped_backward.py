import torch
import torch.distributed as dist
from common import small_model, start

rank = start()
model = small_model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(20):
    loss = model(torch.randn(8, 16, device="cuda")).square().mean()
    if rank == 1 and step == 7:
        continue  # fault
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.barrier()
torch.cuda.synchronize()
