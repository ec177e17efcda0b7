"""`rankwise worker`."""

from __future__ import annotations

import argparse
import logging
import os
import signal
from pathlib import Path

from rankwise.cli.logs import LogOutput
from rankwise.cli.options import add_engine_options, parsed, seconds
from rankwise.errors import UsageError

_EPILOG = """examples:
  rankwise worker MODELS.toml --broker redis://localhost:6379/0
  rankwise worker MODELS.toml --broker amqp://guest:guest@localhost:5672// --results /shared/results

Start as many as you like, on as many machines as you like. SIGTERM or Ctrl-C: takes no more, finishes what it has, leaves.
A message is acknowledged after its answer is stored and sent; what cannot be run goes to the queue NAME.dead with the finding."""


def main(argv: list[str]) -> int:
    options = parsed("worker", add_options, argv)
    for option, value in (("--keep", options.keep), ("--prefetch", options.prefetch)):
        if value < 1:
            raise UsageError(f"{option} takes a number from 1 on, not {value}")
    if not options.queue:
        raise UsageError("--queue is empty", next=("leave it out for rankwise.tasks",))
    from rankwise.broker.connecting import connect, is_redis
    from rankwise.serve.models_file import read_models

    models = read_models(options.models)
    connect(options.broker)  # raises at once where a client library is not installed
    results = options.results or (options.broker if is_redis(options.broker) else str(_own_folder()))

    from rankwise.broker.blobs import Blobs
    from rankwise.broker.consumer import BrokerWorker, WorkerOptions
    from rankwise.broker.stores import RedisStore, open_store
    from rankwise.pool import Pool

    logging.basicConfig(level=logging.INFO, handlers=[LogOutput()], format="%(asctime)s %(name)s %(message)s")
    store = open_store(results, options.queue, options.keep)
    blobs = Blobs(store.redis if isinstance(store, RedisStore) else None, options.files)
    outputs = {entry.key: entry.outputs for entry in models.entries}
    engine = {name: value for name, value in (("engine", options.engine), ("address", options.address)) if value is not None}
    with Pool(models.models, **{**models.pool, **engine}) as pool:
        settings = WorkerOptions(options.broker, options.queue, options.prefetch, options.drain)
        worker = BrokerWorker(pool, store, blobs, settings, outputs)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: worker.stop())
        left = worker.run()
        pool.close(cancel=True, timeout=1)  # tasks that are not done by now go to another worker
    print(f"answered {worker.answered:,} messages" + (f"; {left:,} more are left to the broker, which delivers them again" if left else ""))
    return 0


def _own_folder() -> Path:
    """The user's cache folder: in /tmp other users could put answers of their own."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rankwise" / "results"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.epilog, parser.formatter_class = _EPILOG, argparse.RawDescriptionHelpFormatter
    parser.add_argument("models", metavar="MODELS.toml", help="file that lists the models, as for rankwise serve")
    parser.add_argument("--broker", metavar="URL", required=True, help="address of the broker: redis://… or amqp://…")
    add_engine_options(parser)
    parser.add_argument("--queue", metavar="NAME", default="rankwise.tasks", help="queue that messages come from (default: rankwise.tasks)")
    parser.add_argument(
        "--results",
        metavar="PLACE",
        help="where answers are kept: redis://… or a shared folder (default: the broker if it is Redis, else ~/.cache/rankwise/results)",
    )
    parser.add_argument("--keep", metavar="SECONDS", type=int, default=86400, help="how long answers are kept (default: a day)")
    parser.add_argument("--files", metavar="FOLDER", help="shared folder for large tensors; messages may refer to no other files")
    parser.add_argument("--prefetch", metavar="N", type=int, default=64, help="messages taken ahead of their turn (default: 64)")
    parser.add_argument(
        "--drain", metavar="SECONDS", type=seconds, default=30, help="seconds that running tasks get after SIGTERM (default: 30)"
    )
