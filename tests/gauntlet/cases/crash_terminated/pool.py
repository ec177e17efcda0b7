import os
import subprocess
import sys
import time

env = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ["GAUNTLET_PORT"], WORLD_SIZE="2")
members = [subprocess.Popen([sys.executable, "member.py"], env=dict(env, RANK=str(i))) for i in range(2)]
while not os.path.exists("running") and all(m.poll() is None for m in members):
    time.sleep(0.05)
members[1].terminate()  # fault
codes = [m.wait() for m in members]
sys.exit(1 if any(codes) else 0)
