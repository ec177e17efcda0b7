import multiprocessing as mp
import os

import node

if __name__ == "__main__":
    ctx = mp.get_context("forkserver")
    ctx.set_forkserver_preload(["torch"])
    address = f"tcp://127.0.0.1:{os.environ['GAUNTLET_PORT']}"
    processes = []
    for node_index in range(2):
        for local in range(2):
            processes.append(ctx.Process(target=node.work, args=(local, 4, address), name=f"node{node_index}-{local}"))  # fault
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    raise SystemExit(max(abs(process.exitcode) for process in processes))
