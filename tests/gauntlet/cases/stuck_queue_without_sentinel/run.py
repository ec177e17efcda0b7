import os
import subprocess
import sys

env = {**os.environ, "MASTER_ADDR": "localhost", "MASTER_PORT": os.environ["GAUNTLET_PORT"], "WORLD_SIZE": "2"}
procs = [subprocess.Popen([sys.executable, "train.py"], env={**env, "RANK": str(r)}) for r in (0, 1)]
raise SystemExit(max(p.wait() for p in procs))
