"""Starts one worker per line of the host list, all on this machine."""
import os
import subprocess
import sys

HOSTS = {"alpha": 3, "beta": 2, "gamma": 3}  # fault


def start(rank, host, size):
    env = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(size), HOST_ALIAS=host)
    env.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ["GAUNTLET_PORT"])
    return subprocess.Popen([sys.executable, "job.py"], env=env)


if __name__ == "__main__":
    workers = [start(rank, host, size) for rank, (host, size) in enumerate(HOSTS.items())]
    sys.exit(max(worker.wait() for worker in workers))
