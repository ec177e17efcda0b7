import queue
import threading

END = object()


class TextStream:
    def __init__(self, source):
        self.source = source
        self.out = queue.Queue(2)
        self.reader = threading.Thread(target=self.read, name="reader", daemon=True)
        self.reader.start()

    def read(self):
        for raw in self.source:
            self.out.put(raw.decode("utf-8"))  # fault
        self.out.put(END)

    def __iter__(self):
        while (item := self.out.get()) is not END:  # now
            yield item
