import os
import subprocess
import sys

env = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ["GAUNTLET_PORT"], WORLD_SIZE="2")
ranks = [subprocess.Popen([sys.executable, "train.py"], env=dict(env, RANK=str(r))) for r in range(2)]
code = max(r.wait() for r in ranks)
sys.exit(code)
