import argparse

import torch.distributed as dist

parser = argparse.ArgumentParser(allow_abbrev=False)
parser.add_argument("--epochs", type=int, default=1)
args = parser.parse_args()  # fault
dist.init_process_group("gloo")
dist.barrier()
dist.destroy_process_group()
