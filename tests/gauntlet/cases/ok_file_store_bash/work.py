import argparse

import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--store", required=True)
parser.add_argument("--rank", type=int)
parser.add_argument("--world", type=int)
args = parser.parse_args()

dist.init_process_group("gloo", init_method=f"file://{args.store}", rank=args.rank, world_size=args.world)
rows = [torch.empty(3) for _ in range(args.world)]
dist.all_gather(rows, torch.full((3,), float(args.rank)))
print(torch.stack(rows).tolist())
dist.destroy_process_group()
