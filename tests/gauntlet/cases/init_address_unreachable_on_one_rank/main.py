import os
import subprocess
import sys

ADDRESSES = ["127.0.0.1", "198.51.100.23"]  # fault
jobs = []
for rank, address in enumerate(ADDRESSES):
    env = dict(os.environ, RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR=address, MASTER_PORT=os.environ["GAUNTLET_PORT"])
    jobs.append(subprocess.Popen([sys.executable, "hello.py"], env=env))
sys.exit(max(job.wait() for job in jobs))
