"""`rankwise serve`."""

from __future__ import annotations

import argparse
import gc
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rankwise.cli.options import add_engine_options, number_or_auto, parsed, seconds
from rankwise.errors import UnreadableInput, UsageError

if TYPE_CHECKING:
    from rankwise.protocol import TensorSpec
    from rankwise.serve.models_file import ModelsFile
    from rankwise.serve.server import Server

_EPILOG = """examples:
  rankwise serve MODELS.toml
  rankwise serve models/                                     NAME/VERSION/model.pt2, or model.toml, below it
  rankwise serve --build my_models:build --weights last.pt --input x:FP32:-1,784 --max-batch 32
  rankwise serve MODELS.toml --http 0.0.0.0:8000 --token-file token --certificate cert.pem --private-key key.pem

It listens on loopback only by default. Each request is logged to stderr as a line of JSON. SIGTERM and Ctrl-C let running requests
finish. The token may also stand in RANKWISE_TOKEN.
exit code: 0 after SIGTERM or Ctrl-C; 2 for wrong usage, or where it cannot listen"""
_NEEDED = ("httptools", "orjson", "ml_dtypes", "grpc", "google.protobuf")


def main(argv: list[str]) -> int:
    options = parsed("serve", add_options, argv)
    _check_installed()
    import asyncio

    from rankwise.pool import Pool
    from rankwise.pool.api.model import parse_bytes
    from rankwise.serve.http import Limits, tls_context
    from rankwise.serve.server import Server, ServerOptions, front_end_count, parse_address, run

    for address in (options.http, options.grpc):
        if address:
            parse_address(address)
    if not (options.http or options.grpc):
        raise UsageError('--http "" and --grpc "" leave nowhere to listen', next=("leave one of the two out",))
    if options.traces and not options.traces.startswith(("http://", "https://")):
        raise UsageError(f"--traces takes the URL of a collector, not {options.traces!r}", next=("--traces http://127.0.0.1:4318",))
    tls_context(options.certificate, options.private_key)
    file = _models(options)
    token = _token(options.token_file)
    limits = Limits(body_bytes=parse_bytes(options.max_body, "--max-body"))
    front_ends = int(options.front_ends) if options.front_ends.isdecimal() else options.front_ends
    front_end_count(front_ends)
    chosen = ServerOptions(
        options.http, options.grpc, token, options.certificate, options.private_key, options.drain, options.traces, front_ends, limits
    )
    _log_json(options.quiet)
    given = {
        "workers": number_or_auto("--workers", options.workers, least=0) if options.workers else None,
        "engine": options.engine,
        "address": options.address,
    }
    arguments = {**file.pool, **{name: value for name, value in given.items() if value is not None}}
    pool = Pool(file.models, **arguments)
    try:
        read_again = None if options.models is None else partial(_models, options)  # used when a client loads a model again
        asyncio.run(run(Server(pool, file, chosen, read_again), _begin))
    finally:
        pool.close(cancel=True, timeout=5)
    return 0


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.epilog, parser.formatter_class = _EPILOG, argparse.RawDescriptionHelpFormatter
    parser.add_argument("models", metavar="MODELS.toml", nargs="?", help="file that lists the models, or a folder of models")
    parser.add_argument(
        "--http", metavar="HOST:PORT", default="127.0.0.1:8000", help='where to listen for HTTP, "" for nowhere (default: 127.0.0.1:8000)'
    )
    parser.add_argument(
        "--grpc", metavar="HOST:PORT", default="127.0.0.1:8001", help='where to listen for gRPC, "" for nowhere (default: 127.0.0.1:8001)'
    )
    parser.add_argument(
        "--build", metavar="MODULE:CALLABLE", help="serve one model without MODELS.toml: the function that makes it, or a .pt2 program"
    )
    parser.add_argument("--weights", metavar="CHECKPOINT", help="with --build: any checkpoint, one of a DDP training included")
    parser.add_argument("--name", default="model", help="with --build: what clients call the model (default: model)")
    parser.add_argument(
        "--input",
        metavar="NAME:DATATYPE:SIZES",
        action="append",
        default=[],
        help="with --build: an input of the model, such as x:FP32:-1,784; -1 is the batch",
    )
    parser.add_argument("--max-batch", metavar="N", type=int, default=1, help="with --build: the largest batch (default: 1)")
    parser.add_argument("--device", default="auto", help="with --build: auto, cpu, cuda, cuda:1 (default: auto)")
    parser.add_argument("--workers", metavar="N", default="", help="worker processes (default: as MODELS.toml says, or one per core)")
    add_engine_options(parser)
    parser.add_argument(
        "--front-ends", metavar="N", default="auto", help="processes that only read HTTP; 0 for none (default: by the number of cores)"
    )
    parser.add_argument("--token-file", metavar="PATH", help="file with the bearer token that clients must send")
    parser.add_argument("--certificate", metavar="PEM", default="", help="certificate for TLS, on both ports")
    parser.add_argument("--private-key", metavar="PEM", default="", help="private key of the certificate")
    parser.add_argument("--max-body", metavar="SIZE", default="256MB", help="the largest request that is accepted (default: 256MB)")
    parser.add_argument(
        "--drain", metavar="SECONDS", type=seconds, default=30.0, help="seconds that running requests get after SIGTERM (default: 30)"
    )
    parser.add_argument("--traces", metavar="URL", default="", help="send OpenTelemetry spans to this collector (OTLP over HTTP)")
    parser.add_argument("--quiet", action="store_true", help="log no line per request")


def _models(options: argparse.Namespace) -> ModelsFile:
    from rankwise.pool import Model
    from rankwise.serve.models_file import Entry, ModelsFile, check_name, described, read_folder, read_models

    if (options.models is None) == (options.build is None):
        raise UsageError("rankwise serve takes either MODELS.toml or --build", next=("rankwise serve --help",))
    if options.models is not None:
        for option, value, default in (
            ("--weights", options.weights, None), ("--input", options.input, []), ("--name", options.name, "model"),
            ("--max-batch", options.max_batch, 1), ("--device", options.device, "auto"),
        ):  # fmt: skip
            if value != default:
                raise UsageError(f"{option} belongs to --build; with MODELS.toml it stands in there")
        return read_folder(options.models) if os.path.isdir(options.models) else read_models(options.models)
    check_name("--name", options.name)
    model = Model(options.build, options.weights, options.device, max_batch=options.max_batch)
    model.check(options.name)
    return ModelsFile((described(Entry(options.name, "1", options.name, model, tuple(map(_input, options.input)))),))


def _input(text: str) -> TensorSpec:
    from rankwise.protocol import DATATYPES, TensorSpec

    name, _, rest = text.partition(":")
    datatype, _, sizes = rest.partition(":")
    try:
        shape = tuple([int(size) for size in sizes.split(",") if size.strip()])
    except ValueError:
        shape = (-2,)
    if not name or datatype not in DATATYPES or any(size < -1 for size in shape):
        raise UsageError(
            f"{text!r} does not describe an input", why=f"datatypes are {', '.join(DATATYPES)}", next=("write it as x:FP32:-1,784",)
        )
    return TensorSpec(name, datatype, shape)


def _token(path: str | None) -> str:
    if path is None:
        return os.environ.get("RANKWISE_TOKEN", "")
    try:
        token = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableInput(f"the token file {path} cannot be read", why=str(error)) from None
    if not token:
        raise UsageError(f"the token file {path} is empty")
    return token


def _check_installed() -> None:
    import importlib.util

    missing = [name for name in _NEEDED if importlib.util.find_spec(name.partition(".")[0]) is None]
    if missing:
        raise UsageError(f"rankwise serve needs {', '.join(missing)}", next=('pip install "rankwise[serve]"',))


def _log_json(is_quiet: bool) -> None:
    import logging

    from rankwise.cli.logs import LogOutput
    from rankwise.serve.access import JsonLines

    handler = LogOutput()
    handler.setFormatter(JsonLines())
    log = logging.getLogger("rankwise")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
    if is_quiet:
        logging.getLogger("rankwise.serve.access").setLevel(logging.WARNING)


def _begin(server: Server) -> None:
    from rankwise.serve.server import address_text

    gc.collect()
    gc.freeze()  # what is here stays: to look through it for garbage, now and then, made one request in a hundred wait 15 ms longer
    names = ", ".join(server.catalogue.by_name)
    listening = {"http": server.http_address, "grpc": server.grpc_address}
    where = " and ".join(f"{kind} on {address_text(*address)}" for kind, address in listening.items() if address is not None)
    print(f"serving {names}: {where}", flush=True)
