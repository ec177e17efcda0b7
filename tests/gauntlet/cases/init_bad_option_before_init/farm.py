import multiprocessing as mp
import os


def entry(rank, options):
    import agent

    agent.main(rank, options)


if __name__ == "__main__":
    mp.set_start_method("spawn")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ["GAUNTLET_PORT"], WORLD_SIZE="3")
    options = ["lr=0.1", "lr=0,1", "lr=0.1"]
    procs = [mp.Process(target=entry, args=(r, options[r])) for r in range(3)]
    for p in procs:
        p.start()
    procs[0].join()
    for p in procs:
        p.terminate()
