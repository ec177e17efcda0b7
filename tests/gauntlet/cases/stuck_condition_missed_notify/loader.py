import threading
import time

import torch


class Loader:
    def __init__(self, fast):
        self.ready = threading.Condition()
        self.data = None
        self.thread = threading.Thread(target=self._load, args=(0.0 if fast else 1.0,), name="loader")
        self.thread.start()
        if fast:
            self.thread.join()

    def _load(self, seconds):
        time.sleep(seconds)
        with self.ready:
            self.data = torch.ones(5)
            self.ready.notify_all()

    def wait(self):
        with self.ready:
            self.ready.wait()  # fault
        return self.data
