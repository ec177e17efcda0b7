import torch
from common import small_model, start, train_step

rank = start()


def draw(limit):
    n = 0
    while n >= 0:
        n = (n + 1) % limit  # fault


model = small_model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(30):
    train_step(model, optimizer)
    if rank == 1 and step == 5:
        draw(1000)
