import argparse
import os

import torch.multiprocessing as mp

from loop import worker

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1)
    args = parser.parse_args()
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", os.environ["GAUNTLET_PORT"]
    mp.spawn(worker, args=(3, args.epochs), nprocs=3)
