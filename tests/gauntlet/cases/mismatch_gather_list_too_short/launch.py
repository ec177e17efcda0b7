import os
import torch.multiprocessing as mp

from collect import main

if __name__ == "__main__":
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ["GAUNTLET_PORT"])
    mp.start_processes(main, args=(3,), nprocs=3, start_method="spawn")
