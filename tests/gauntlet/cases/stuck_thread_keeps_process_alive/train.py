import queue
import threading

import torch
import torch.distributed as dist


class Uploader:
    def __init__(self):
        self.jobs = queue.Queue()
        self.thread = threading.Thread(target=self.work, name="uploader")
        self.thread.start()

    def work(self):
        while True:
            job = self.jobs.get()  # fault
            if job is None:
                return

    def stop(self):
        self.jobs.put(None)


def main():
    dist.init_process_group("gloo")
    uploader = Uploader()
    x = torch.ones(1)
    dist.all_reduce(x)
    uploader.jobs.put("result")
    if dist.get_rank() == 0:
        uploader.stop()
    dist.destroy_process_group()
    print("finished", flush=True)


if __name__ == "__main__":
    main()
