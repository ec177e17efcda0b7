"""Restart the ranks listed in failed.txt."""
import os
import subprocess
import sys

failed = [1, 2]  # fault
env = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ["GAUNTLET_PORT"], WORLD_SIZE="3")
procs = {rank: subprocess.Popen([sys.executable, "train.py", "--resume"], env={**env, "RANK": str(rank)}) for rank in failed}
for rank, proc in procs.items():
    print(rank, proc.wait())
