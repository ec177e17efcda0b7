import atexit
import os
import signal
import sys
import threading

assert os.environ.get("OUR_SITE") == "loaded", "our sitecustomize was not run"
assert sys.excepthook is sys.__excepthook__, "somebody replaced sys.excepthook"
assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, "somebody handles SIGTERM"
assert sys.path[0] == os.path.dirname(os.path.abspath(__file__)), sys.path

seen = []
sys.excepthook = lambda *exc: seen.append(exc[0].__name__)
threading.excepthook = lambda args: seen.append(args.exc_type.__name__)
signal.signal(signal.SIGUSR1, lambda *_: seen.append("usr1"))
signal.signal(signal.SIGTERM, lambda *_: seen.append("term"))
previous = signal.signal(signal.SIGALRM, lambda *_: seen.append("alarm"))

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
os.kill(os.getpid(), signal.SIGUSR1)
os.kill(os.getpid(), signal.SIGTERM)
signal.setitimer(signal.ITIMER_REAL, 0.05)
thread = threading.Thread(target=lambda: 1 / 0)
thread.start()
thread.join()
while "alarm" not in seen:
    signal.pause()
x = torch.ones(1)
dist.all_reduce(x)
dist.destroy_process_group()
assert sorted(seen) == ["ZeroDivisionError", "alarm", "term", "usr1"], seen
atexit.register(print, "bye", flush=True)
