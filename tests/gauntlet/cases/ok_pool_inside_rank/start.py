import multiprocessing as mp
import os
import sys

import rank_main

if __name__ == "__main__":
    ctx = mp.get_context("forkserver")
    ctx.set_forkserver_preload(["torch"])
    address = f"tcp://localhost:{os.environ['GAUNTLET_PORT']}"
    ranks = [ctx.Process(target=rank_main.run, args=(r, 2, address)) for r in range(2)]
    for r in ranks:
        r.start()
    for r in ranks:
        r.join()
    sys.exit(max(r.exitcode for r in ranks))
