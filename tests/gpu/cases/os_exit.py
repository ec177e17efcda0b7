import os

import torch
from common import small_model, start, train_step

rank = start()
model = small_model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(3000):
    train_step(model, optimizer)
    if rank == 1 and step == 20:
        os._exit(0)  # fault
