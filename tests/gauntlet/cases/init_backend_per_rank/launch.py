import os
import subprocess
import sys

gpus = {1: "0"}
kids = []
for r in range(2):
    env = {**os.environ, "RANK": str(r), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": os.environ["GAUNTLET_PORT"]}
    if r in gpus:
        env["CUDA_VISIBLE_DEVICES"] = gpus[r]
    kids.append(subprocess.Popen([sys.executable, "train.py"], env=env))
sys.exit(sum(kid.wait() != 0 for kid in kids))
