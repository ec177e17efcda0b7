import configparser
import os
import subprocess
import sys


def write_settings(path, port):
    settings = configparser.ConfigParser()
    settings["rendezvous"] = {"addr": "localhost", "port": str(port)}
    with open(path, "w") as f:
        settings.write(f)


port = int(os.environ["GAUNTLET_PORT"])
write_settings("default.ini", port)
write_settings("worker1.ini", port + 1)  # fault

workers = []
for rank in range(3):
    own = f"worker{rank}.ini"
    env = dict(os.environ, RANK=str(rank), WORLD_SIZE="3", SETTINGS=own if os.path.exists(own) else "default.ini")
    workers.append(subprocess.Popen([sys.executable, "worker.py"], env=env))
for worker in workers:
    worker.wait()
