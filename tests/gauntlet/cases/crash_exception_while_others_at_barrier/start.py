import multiprocessing as mp
import os
import sys

if __name__ == "__main__":
    mp.set_start_method("forkserver")
    mp.set_forkserver_preload(["torch", "torch.distributed"])
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ["GAUNTLET_PORT"])
    import member

    ranks = [mp.Process(target=member.main, args=(r, 3)) for r in range(3)]
    for r in ranks:
        r.start()
    for r in ranks:
        r.join()
    sys.exit(any(r.exitcode for r in ranks))
