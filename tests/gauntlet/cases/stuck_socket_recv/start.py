import os
import subprocess
import sys

port = int(os.environ["GAUNTLET_PORT"])
server = subprocess.Popen([sys.executable, "feature_server.py", str(port + 1)], stdout=subprocess.PIPE)
server.stdout.readline()
env = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE="2", FEATURES=str(port + 1))
ranks = [subprocess.Popen([sys.executable, "train.py"], env=dict(env, RANK=str(r))) for r in range(2)]
code = max(r.wait() for r in ranks)
server.terminate()
sys.exit(code)
