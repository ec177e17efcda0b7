"""Two ranks on one GPU through session(): healthy, with one GPU claimed twice, or with a GPU that is not there."""

import json
import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

import rankwise

how = sys.argv[1]
if how != "not_there":
    os.environ["LOCAL_RANK"] = "0"
if how == "healthy":
    os.environ["NCCL_HOSTID"] = f"host-{os.environ['RANK']}"  # NCCL refuses one GPU to two ranks of one host


def main() -> dict:
    with rankwise.session(timeout_s=60) as job:
        total = torch.tensor([job.rank + 1.0], device=job.device)
        dist.all_reduce(total)
        model = torch.nn.Linear(4, 2).to(job.device)
        job.agree(model)
        wrapped = DDP(model, device_ids=[job.device.index])
        wrapped(torch.full((3, 4), float(job.rank), device=job.device)).sum().backward()
        job.check_gradients(wrapped)
        return {"backend": job.backend, "device": str(job.device), "sum": total.item(), "codes": [note.code for note in job.notes]}


try:
    told = main()
except rankwise.StartError as error:
    told = {"finding": error.finding.to_dict(), "text": str(error)}
told["left"] = not dist.is_initialized()
with open(f"{sys.argv[2]}/rank-{os.environ['RANK']}.json", "w") as file:
    json.dump(told, file)
