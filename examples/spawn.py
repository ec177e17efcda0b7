"""The training of train.py, with ranks that the script starts itself."""

import os
import socket

import torch.multiprocessing as mp
import train

WORLD_SIZE = 2


def work(rank: int, port: int) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(WORLD_SIZE), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    train.main()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    mp.spawn(work, args=(free_port(),), nprocs=WORLD_SIZE)
