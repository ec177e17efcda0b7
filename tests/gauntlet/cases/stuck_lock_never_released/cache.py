import threading

import torch


class FeatureCache:
    def __init__(self, capacity):
        self.capacity, self.items = capacity, {}
        self.lock = threading.Lock()

    def _store(self, key, value):
        if len(self.items) >= self.capacity:
            raise OverflowError(key)
        self.items[key] = value

    def get(self, key):
        value = torch.full((4,), float(key))
        self.lock.acquire()  # fault
        try:
            self._store(key, value)
        except OverflowError:
            return value
        self.lock.release()
        return value
