import threading


class Recorder:
    def __init__(self):
        self.lock, self.values = threading.RLock(), []
        self.closing = threading.Event()
        self.flusher = threading.Thread(target=self._flush, name="flusher", daemon=True)
        self.flusher.start()

    def add(self, value):
        with self.lock:
            self.values.append(value)

    def _flush(self):
        self.closing.wait()
        with self.lock:
            self.values.clear()

    def close(self):
        with self.lock:
            self.closing.set()
            self.flusher.join()  # fault
