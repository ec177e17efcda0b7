import os
import signal
import subprocess
import sys
import time

env = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ["GAUNTLET_PORT"], WORLD_SIZE="2")
ranks = [subprocess.Popen([sys.executable, "steps.py"], env=dict(env, RANK=str(r))) for r in range(2)]
while not os.path.exists("warm") and all(r.poll() is None for r in ranks):
    time.sleep(0.05)
ranks[1].send_signal(signal.SIGSTOP)
time.sleep(2)
ranks[1].send_signal(signal.SIGCONT)
sys.exit(max(r.wait() for r in ranks))
