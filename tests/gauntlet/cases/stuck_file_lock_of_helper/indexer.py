import fcntl
import time

with open("dataset.lock", "r+") as f:
    fcntl.lockf(f, fcntl.LOCK_EX)
    open("indexer.ready", "w").close()
    time.sleep(600)
